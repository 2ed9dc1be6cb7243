"""A backend: one model server, as the configuration names it. Pure."""

import urllib.parse

import msgspec

NAME_PATTERN = "^[a-z0-9][a-z0-9._-]{0,62}$"
"""Names of tenants, projects, backends and model ids: they stand in hash tags, labels, paths."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configuration sections: a misspelt key is an error, not a default."""


class Backend(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vLLM server. Keys are the configuration's (deploy/reference/config.md).

    model: the name the server knows its model by. slots: seats in its batch (`max_num_seqs`);
    None: unknown, no cap and no derived price. units of units_total: NeuronCores or accelerators
    of the instance that this server owns; None: all of them.
    """

    name: str
    url: str
    model: str
    instance_type: str | None = None
    instance_id: str | None = None
    units: int | None = None
    units_total: int | None = None
    slots: int | None = None
    max_model_len: int | None = None
    account: str | None = None
    region: str | None = None
    az: str | None = None
    neuron_version: str | None = None
    precision: str | None = None
    tensor_parallel: int | None = None
    key_file: str | None = None

    def address(self) -> tuple[str, int]:
        """Host and port of `url`; the configuration's check has made sure it is http://host[:port]."""
        parts = urllib.parse.urlsplit(self.url)
        assert parts.scheme == "http"
        assert parts.hostname is not None
        return parts.hostname, parts.port or 80
