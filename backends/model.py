"""A backend: one model server, as the configuration names it. Pure."""

import urllib.parse
from typing import Annotated

import msgspec

from metering.cost.price_book import PurchaseOption
from metering.cost.schedule import ALWAYS

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}\Z"
"""Names of tenants, projects, backends and model ids: they stand in hash tags, labels, paths."""

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
HOST_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z"
HostName = Annotated[str, msgspec.Meta(pattern=HOST_NAME_PATTERN)]
HARDWARE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
"""Instance types and families: they stand in labels and in the ledger's field names."""

Hardware = Annotated[str, msgspec.Meta(pattern=HARDWARE_PATTERN)]
COUNT_MAX = 10**9
"""Above any number of slots, cores or tokens; with it no sum of ours leaves 64 bits."""

Count = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]


DEFAULT_PORTS = {"http": 80, "https": 443}


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configuration sections: a misspelt key is an error, not a default."""


class Backend(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vLLM server. Keys are the configuration's (deploy/reference/config.md).

    model: the name the server knows its model by. slots: seats in its batch (`max_num_seqs`);
    None: unknown, no cap and no derived price. units of units_total: NeuronCores or accelerators
    of the instance that this server owns; None: all of them. ca_file, server_name: of an https url alone;
    None: the system's trust, and the host of the url. billed, launched, terminated, purchase_option: of the instance:
    when it is paid for, and how. cache_salt: it knows this member of a request; a vLLM before 0.9 does not.
    """

    name: Name
    url: Path
    model: Text
    instance_type: Hardware | None = None
    instance_id: Text | None = None
    units: Count | None = None
    units_total: Count | None = None
    slots: Count | None = None
    max_model_len: Count | None = None
    account: Text | None = None
    region: Text | None = None
    az: Text | None = None
    neuron_version: Text | None = None
    precision: Text | None = None
    tensor_parallel: Count | None = None
    billed: Text = ALWAYS
    launched: Text | None = None
    terminated: Text | None = None
    purchase_option: PurchaseOption | None = None
    key_file: Path | None = None
    cache_salt: bool = True
    ca_file: Path | None = None
    server_name: HostName | None = None

    @property
    def tls(self) -> bool:
        """Is it spoken to over TLS?"""
        return urllib.parse.urlsplit(self.url).scheme == "https"

    def address(self) -> tuple[str, int]:
        """Host and port of `url`; the configuration's check has made sure it is http[s]://host[:port]."""
        parts = urllib.parse.urlsplit(self.url)
        assert parts.scheme in DEFAULT_PORTS
        assert parts.hostname is not None
        return parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]
