"""Shared costs in the configuration: what they become, and how mistakes are named."""

import pathlib

import pytest

from gateway.configuration import config_load, price_books
from gateway.configuration.config import SharedCostEntry
from gateway.configuration.config_tree import ConfigErrors
from gateway.configuration.shared_costs_config import check_shared_cost, shared_costs
from gateway.duties import close_runs
from metering.archive.objects import LocalObjects
from metering.cost.close_row import RowKind
from metering.cost.shared_costs import SharedCost, Split
from metering.periods import parse_moment
from tests.gateway.configuration.test_config import GOOD, mistakes


def wrong(**fields: str) -> list[str]:
    found: list[str] = []
    entry = SharedCostEntry(**({"name": "s3"} | fields))  # type: ignore[arg-type]
    check_shared_cost("shared_costs[0]", entry, lambda path, message: found.append(f"{path}: {message}"))
    return found


def test_what_they_become() -> None:
    entries = (
        SharedCostEntry(name="s3", usd_per_month="240.5", since="2026-11-01", until="2026-12-01T06:00:00Z"),
        SharedCostEntry(name="nodes", usd_per_hour="0.384", split="allocated"),
    )
    assert shared_costs(entries) == (
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


def test_the_close_has_rows_of_them(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD + 'shared_costs:\n  - {name: s3, usd_per_hour: "1.5", since: 2026-11-01}\n')
    rules = close_runs.rules(config_load.place(file, {}), price_books.load((), LocalObjects(tmp_path)))
    first = parse_moment("2026-11-01")
    (row,) = rules.shared(first, [])
    assert (row.kind, row.backend, row.allocated_pusd) == (RowKind.SHARED_COST, "s3", 1_500_000_000_000)
    assert rules.shared(first - 1, []) == []


def test_a_command_names_their_mistakes(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD + "shared_costs:\n  - {name: s3}\n")
    with pytest.raises(
        ConfigErrors, match=r"shared_costs\[0\]: must have one of usd_per_month and usd_per_hour"
    ):
        config_load.place(file, {})
