"""Shared costs in the configuration: what they become, and how mistakes are named."""

import pathlib

import msgspec
import pytest

from gateway.config import SharedCostEntry
from gateway.shared_costs_config import check_shared_cost, shared_costs
from metering.periods import parse_moment
from metering.shared_costs import SharedCost, Split
from tests.gateway.test_config import GOOD, load, mistakes


def wrong(**fields: str) -> list[str]:
    found: list[str] = []
    entry = SharedCostEntry(**({"name": "s3"} | fields))  # type: ignore[arg-type]
    check_shared_cost("shared_costs[0]", entry, lambda path, message: found.append(f"{path}: {message}"))
    return found


def test_what_they_become(tmp_path: pathlib.Path) -> None:
    entries = (
        SharedCostEntry(name="s3", usd_per_month="240.5", since="2026-11-01", until="2026-12-01T06:00:00Z"),
        SharedCostEntry(name="nodes", usd_per_hour="0.384", split="allocated"),
    )
    config = msgspec.structs.replace(load(tmp_path, GOOD), shared_costs=entries)
    assert shared_costs(config) == (
        SharedCost(
            name="s3",
            uusd_per_month=240_500_000,
            from_hour=parse_moment("2026-11-01"),
            to_hour=parse_moment("2026-12-01") + 6,
        ),
        SharedCost(name="nodes", uusd_per_hour=384_000, split=Split.ALLOCATED),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "shared_costs[0]: must have one of usd_per_month and usd_per_hour"),
        ({"usd_per_month": "1", "usd_per_hour": "1"}, "shared_costs[0]: must have one of usd_per_month and"),
        ({"usd_per_month": "a lot"}, "shared_costs[0].usd_per_month: 'a lot' is no amount in USD"),
        ({"usd_per_hour": "0.0000001"}, "shared_costs[0].usd_per_hour: 0.0000001 USD is finer than"),
        ({"usd_per_hour": "1", "since": "soon"}, "shared_costs[0].since: 'soon' is no time"),
        (
            {"usd_per_hour": "1", "until": "2026-11-01T00:30:00Z"},
            "shared_costs[0].until: '2026-11-01T00:30:00Z' is",
        ),
        (
            {"usd_per_hour": "1", "since": "2026-11-02", "until": "2026-11-02"},
            "shared_costs[0].until: 2026-11-02 is",
        ),
    ],
)
def test_mistakes_are_named(fields: dict[str, str], message: str) -> None:
    (found,) = wrong(**fields)
    assert found.startswith(message)


def test_a_name_stands_once(tmp_path: pathlib.Path) -> None:
    twice = 'shared_costs:\n  - {name: s3, usd_per_hour: "1"}\n  - {name: s3, usd_per_hour: "2"}\n'
    (found,) = mistakes(tmp_path, GOOD + twice)
    assert "shared_costs[1].name: is the same as shared_costs[0]" in found
