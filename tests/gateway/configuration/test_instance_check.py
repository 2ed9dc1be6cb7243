"""What is refused, and what is noted, of instances in the configuration."""

from typing import Any

import pytest

from backends.catalog import read_catalog
from backends.model import Backend
from gateway.configuration import instance_check
from gateway.configuration.config_load import instances_csv

CATALOG = read_catalog(instances_csv())


def backend(name: str, **fields: Any) -> Backend:
    return Backend(name=name, url="http://127.0.0.1:1", model="m", **fields)


def mistakes(*backends: Backend) -> dict[str, str]:
    found: dict[str, str] = {}
    instance_check.check(backends, CATALOG, found.__setitem__)
    return found


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("billed", "weekdays", "'weekdays' is no time of the week"),
        ("billed", "mon-fri 19:00-19:00", "has no length"),
        ("launched", "yesterday", "'yesterday' is no time"),
        ("terminated", "2026-11-31", "'2026-11-31' is no time"),
    ],
)
def test_what_is_no_time_is_refused(key: str, value: str, says: str) -> None:
    found = mistakes(backend("a"), backend("b", **{key: value}))
    assert list(found) == [f"backends[1].{key}"]
    assert says in found[f"backends[1].{key}"]


def test_a_termination_comes_after_the_launch() -> None:
    found = mistakes(backend("a", launched="2026-11-02", terminated="2026-11-02T00:00:00Z"))
    assert found == {"backends[0].terminated": "is not after launched"}
    assert mistakes(backend("a", launched="2026-11-02", terminated="2026-11-02T00:00:01Z")) == {}
    assert mistakes(backend("a", terminated="2026-11-02", billed="mon-fri 07:00-19:00")) == {}


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("instance_type", "inf2.48xlarge", "inf2.24xlarge"),
        ("units_total", 24, 12),
        ("account", "1", "2"),
        ("region", "us-east-1", None),
        ("az", "us-east-1a", "us-east-1b"),
        ("billed", "always", "mon 07:00-19:00"),
        ("launched", "2026-11-01", "2026-11-02"),
        ("terminated", None, "2026-11-02"),
        ("purchase_option", "spot", "reserved"),
    ],
)
def test_backends_of_one_instance_say_the_same_of_it(key: str, one: Any, other: Any) -> None:
    shared = [backend("a", instance_id="i-1", **{key: one}), backend("b", instance_id="i-1", **{key: other})]
    told = mistakes(backend("c"), *shared)
    assert told == {f"backends[2].{key}": "is not what backends[1] says of the same instance, i-1"}
    apart = [backend("a", instance_id="i-1", **{key: one}), backend("b", instance_id="i-2", **{key: other})]
    assert mistakes(*apart) == {}
    assert mistakes(backend("a", **{key: one}), backend("b", **{key: other})) == {}


def test_what_is_left_to_a_default_is_what_that_is() -> None:
    one = backend("a", instance_id="i-1", instance_type="inf2.48xlarge", units=8)
    other = backend(
        "b",
        instance_id="i-1",
        instance_type="inf2.48xlarge",
        units=8,
        units_total=24,
        purchase_option="on-demand",
    )
    assert mistakes(one, other) == {}


def notes(*backends: Backend) -> list[str]:
    return list(instance_check.notes(backends, CATALOG))


def test_a_share_of_an_instance_without_a_name_is_noted() -> None:
    told = notes(
        backend("a", instance_type="inf2.48xlarge", units=8),
        backend("b", instance_type="inf2.48xlarge", units=16),
    )
    assert [note.partition(" of an instance")[0] for note in told] == [
        "a owns 8 of 24 units",
        "b owns 16 of 24 units",
    ]
    assert "16 units stranded; give instance_id" in told[0]


def test_too_many_units_of_one_instance_are_noted() -> None:
    three = [backend(name, instance_type="inf2.48xlarge", instance_id="i-1", units=9) for name in "abc"]
    assert notes(*three) == [
        "a, b, c claim 27 units of i-1, which has 24: each is charged for less",
    ]
    assert notes(*three[:2]) == []


def test_whole_instances_and_unknown_ones_are_as_they_should_be() -> None:
    assert (
        notes(
            backend("a", instance_type="inf2.48xlarge"),
            backend("b", instance_type="p9.huge"),
            backend("c"),
            backend("d", instance_id="i-1"),
        )
        == []
    )
