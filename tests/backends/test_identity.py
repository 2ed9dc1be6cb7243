"""What is known of a backend: from the configuration, the table and the server's own answers."""

import hashlib
import json
import pathlib

import msgspec
import pytest

from backends import identity
from backends.catalog import read_catalog
from backends.identity import ModelFacts, Probed
from backends.model import Backend
from metering.record import Host, Instance

CATALOG = read_catalog(
    (pathlib.Path(__file__).parent.parent.parent / "metering/data/instances.csv").read_text()
)
MODEL = ModelFacts(
    id="llama", owner="team-a", vendor="meta", logging_policy="none", storage_location="s3://models/llama"
)
PROBED = Probed(framework="vllm", framework_version="0.13.0", max_model_len=4096, simulated=True)


def host(probed: Probed = PROBED, **fields: object) -> Host:
    backend = Backend(name="b1", url="http://127.0.0.1:1", model="meta/Llama", **fields)  # type: ignore[arg-type]
    return identity.host(backend, MODEL, CATALOG, probed)


def test_a_configured_instance_is_owned_whole() -> None:
    facts = host(instance_type="inf2.48xlarge", instance_id="i-0a", neuron_version="2.28.0", slots=8)
    assert facts.instances == (Instance(id="i-0a", type="inf2.48xlarge", units=24, units_total=24),)
    assert (facts.accelerator, facts.cores, facts.instance_family) == ("inferentia2", 24, "inf2")
    assert facts.identity_source == "config"
    assert (facts.neuron_version, facts.slots) == ("2.28.0", 8)
    assert (facts.backend, facts.model, facts.served_model) == ("b1", "llama", "meta/Llama")
    assert (facts.owner, facts.vendor, facts.storage_location) == ("team-a", "meta", "s3://models/llama")
    assert (facts.framework, facts.framework_version, facts.simulated) == ("vllm", "0.13.0", True)


@pytest.mark.parametrize(
    ("fields", "share", "cores"),
    [
        ({"instance_type": "inf2.48xlarge", "units": 8}, (8, 24), 8),
        ({"instance_type": "trn2.48xlarge", "units": 16, "units_total": 64}, (16, 64), 32),  # logical cores
        ({"instance_type": "inf2.48xlarge", "units": 1, "units_total": 5}, (1, 5), None),  # no whole number
        ({"instance_type": "g6e.12xlarge", "units": 2}, (2, 4), None),  # GPUs
        ({"instance_type": "inf9.xlarge"}, (None, None), None),  # not in the table
        ({"instance_type": "inf9.xlarge", "units_total": 4}, (4, 4), None),
        ({"instance_id": "i-0a"}, (None, None), None),
    ],
)
def test_shares(fields: dict[str, object], share: tuple[int | None, int | None], cores: int | None) -> None:
    facts = host(**fields)
    (instance,) = facts.instances
    assert (instance.units, instance.units_total) == share
    assert facts.cores == cores


def test_nothing_configured_is_unknown() -> None:
    facts = host(Probed())
    assert facts.identity_source == "unknown"
    assert facts.instances == ()
    assert facts.instance_family is None
    assert facts.framework is None
    assert facts.max_model_len is None


def test_a_configured_length_goes_before_the_servers() -> None:
    assert host().max_model_len == 4096
    assert host(max_model_len=2048).max_model_len == 2048


def test_the_digest_is_of_canonical_json() -> None:
    facts = host(instance_type="inf2.xlarge", region="eu-west-1")
    plain = json.loads(msgspec.json.encode(facts))
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert identity.digest(facts) == "sha256:" + hashlib.sha256(canonical).hexdigest()
    assert identity.digest(facts) != identity.digest(host(instance_type="inf2.xlarge", region="eu-west-2"))
