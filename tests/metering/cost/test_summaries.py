"""Sums of closed hours, against sums made by hand."""

import collections
import datetime
import pathlib
import random
import zoneinfo

import pytest

from metering.archive.objects import LocalObjects
from metering.cost import summaries
from metering.cost.amounts import Amounts, total
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from metering.export.export_parts import Correction, Part
from tests.support import closed

HOURS = range(closed.HOUR, closed.HOUR + 30)
AMOUNTS = [
    name for name in Amounts.__struct_fields__ if name not in ("unpriced_micro_hours", "unlisted_micro_hours")
]


@pytest.fixture(scope="module")
def rows() -> dict[int, list[CloseRow]]:
    chance = random.Random(7)
    tags = [None, {"cost_center": "cc-1"}, {"cost-centre": "cc-2", "team": "search"}, {"team": "it's"}]

    def one(hour: int, n: int) -> CloseRow:
        kind = chance.choice([RowKind.TENANT, RowKind.TENANT, RowKind.IDLE, RowKind.STARTUP])
        of_tenant = {
            "tenant": chance.choice(["acme", "globex"]),
            "project": chance.choice([None, "search"]),
            "model": chance.choice(["llama", "qwen"]),
            "operation": "chat",
            "tags": chance.choice(tags),
            "calls": n,
            "prompt_tokens": 10 * n,
            "cached_prompt_tokens": n,
            "completion_tokens": 7 * n,
            "estimated_pusd": 11 * n,
            "unpriced_calls": n % 2,
        }
        priced = {} if chance.random() < 0.8 else {"uusd_per_hour": None}
        return closed.row(
            hour,
            kind=kind,
            instance_id=f"i-{n % 3}",
            instance_family=chance.choice(["inf2", "trn1"]),
            micro_hours=chance.randrange(1_000_000),
            shared_micro_hours=n,
            slot_ns=n * 1_000,
            work_units=n,
            **(of_tenant if kind is RowKind.TENANT else {}),
            **priced,
        )

    return {hour: [one(hour, n) for n in range(12)] for hour in HOURS}


@pytest.fixture(scope="module")
def closes(rows: dict[int, list[CloseRow]], tmp_path_factory: pytest.TempPathFactory) -> Closes:
    made = Closes(LocalObjects(tmp_path_factory.mktemp("closes")))
    for hour, of_hour in rows.items():
        made.commit(closed.manifest(of_hour, hour=hour), of_hour)
    return made


@pytest.fixture(scope="module")
def parts(closes: Closes) -> list[Part]:
    return [Part(manifest) for manifest in closes.hours(HOURS)]


def by_hand(row: CloseRow, name: str) -> str | None:
    tags = row.tags or {}
    match name:
        case "tenant" | "project" | "operation" | "instance_type":
            return getattr(row, name)
        case "model":
            return row.model or row.pool
        case "family":
            return row.instance_family
        case "cost_centre":
            return tags.get("cost_center") or tags.get("cost-centre")
        case "day":
            return (datetime.date(1970, 1, 1) + datetime.timedelta(days=row.hour // 24)).isoformat()
        case _:
            return tags.get(name.removeprefix("tag:"))


@pytest.mark.parametrize(
    "by",
    [
        (),
        ("tenant",),
        ("tenant", "project", "model"),
        ("cost_centre", "tenant"),
        ("family", "day"),
        ("tag:team", "operation", "instance_type"),
    ],
)
def test_sums_are_those_made_by_hand(
    closes: Closes, parts: list[Part], rows: dict[int, list[CloseRow]], by: tuple[str, ...]
) -> None:
    wanted: dict[tuple[object, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in (row for of_hour in rows.values() for row in of_hour):
        sums = wanted[row.kind, tuple(by_hand(row, name) for name in by)]
        for name in AMOUNTS:
            sums[name] += getattr(row, name) or 0
        if row.list_pusd is None:
            sums["unlisted_micro_hours"] += row.micro_hours
        if row.allocated_pusd is None:
            sums["unpriced_micro_hours"] += row.micro_hours
    found = summaries.summarise(closes, parts, by)
    assert {
        (one.kind, one.key): {name: getattr(one.amounts, name) for name in Amounts.__struct_fields__}
        for one in found
    } == {key: {name: sums[name] for name in Amounts.__struct_fields__} for key, sums in wanted.items()}
    assert len({(one.kind, one.key) for one in found}) == len(found)


def test_days_are_those_of_the_zone(closes: Closes, parts: list[Part]) -> None:
    berlin = summaries.summarise(closes, parts, ["day"], zoneinfo.ZoneInfo("Europe/Berlin"))
    assert {one.key[0] for one in berlin} == {"2026-01-01", "2026-01-02"}
    assert total(berlin) == total(summaries.summarise(closes, parts, []))


def test_what_is_taken_back_counts_against_it(closes: Closes, parts: list[Part]) -> None:
    back = [Part(part.manifest, Correction.REVERSAL, 1) for part in parts[:5]]
    all_of_it = total(summaries.summarise(closes, parts, []))
    taken = total(summaries.summarise(closes, back, ["tenant"]))
    rest = total(summaries.summarise(closes, parts[5:], []))
    assert taken.allocated_pusd < 0
    assert all_of_it + taken == rest
    assert total(summaries.summarise(closes, [*parts, *back], [])) == rest


def test_prices_of_what_is_taken_back_do_not_count(closes: Closes, parts: list[Part]) -> None:
    back = [Part(part.manifest, Correction.REVERSAL, 1) for part in parts[:5]]
    again = [Part(part.manifest, Correction.RESTATED, 1) for part in parts[:5]]
    assert summaries.prices_used(closes, [*back, *parts]) == summaries.prices_used(closes, parts[5:])
    assert summaries.prices_used(closes, [*parts[5:], *again]) == summaries.prices_used(closes, parts)


def test_what_no_backend_owns_is_of_the_only_pool_of_its_instance(tmp_path: pathlib.Path) -> None:
    closes = Closes(LocalObjects(tmp_path))
    rows = [
        closed.row(instance_id="i-1", pool="llama", micro_hours=600_000),
        closed.row(instance_id="i-1", pool=None, backend=None, kind=RowKind.STRANDED, micro_hours=400_000),
        closed.row(instance_id="i-2", pool="llama", micro_hours=300_000),
        closed.row(instance_id="i-2", pool="qwen", backend="b", micro_hours=300_000),
        closed.row(instance_id="i-2", pool=None, backend=None, kind=RowKind.STRANDED, micro_hours=400_000),
    ]
    part = Part(closes.commit(closed.manifest(rows), rows))
    found = summaries.summarise(closes, [part], ["pool"])
    assert {(one.kind, one.key[0]): one.amounts.micro_hours for one in found} == {
        (RowKind.IDLE, "llama"): 900_000,
        (RowKind.IDLE, "qwen"): 300_000,
        (RowKind.STRANDED, "llama"): 400_000,
        (RowKind.STRANDED, None): 400_000,
    }


@pytest.mark.parametrize("by", [["nobody"], ["tag:"], ["tenant", "tenant"]])
def test_a_sum_by_what_is_not_there_is_refused(closes: Closes, by: list[str]) -> None:
    with pytest.raises(ValueError, match=by[0]):
        summaries.summarise(closes, [], by)


def test_nothing_has_no_sums(closes: Closes) -> None:
    assert summaries.summarise(closes, [], ["tenant"]) == []
    assert total([]) == Amounts()


def test_the_basis_of_a_type_is_that_of_its_instances(tmp_path: pathlib.Path) -> None:
    """An instance that the bill does not have keeps its list price, in an hour whose basis is the bill."""
    made = Closes(LocalObjects(tmp_path))
    first = [
        closed.row(instance_id="i-1", micro_hours=1),
        closed.row(instance_id="i-2", micro_hours=1, instance_type="g6e.xlarge"),
        closed.row(instance_id="i-3", micro_hours=1, instance_type="trn1.32xlarge"),
        closed.row(instance_id="i-4", micro_hours=1, instance_type="trn1.32xlarge"),
        closed.row(instance_id="i-5", micro_hours=1, instance_type="inf2.xlarge", simulated=True),
        closed.row(instance_id="i-1", micro_hours=1, pool=None),
    ]
    made.commit(closed.manifest(first, basis="bill:ab", unbilled=("i-2", "i-4")), first)
    later = [closed.row(HOURS.start + 1, instance_id="i-1", micro_hours=1, pool="qwen")]
    made.commit(closed.manifest(later, hour=HOURS.start + 1), later)
    parts = [Part(manifest) for manifest in made.hours(HOURS)]
    assert summaries.bases_used(made, parts) == {
        ("llama", "inf2.48xlarge"): {"bill"},
        ("llama", "g6e.xlarge"): {"list"},
        ("llama", "trn1.32xlarge"): {"bill", "list"},
        ("llama", "inf2.xlarge"): {"list"},
        (None, "inf2.48xlarge"): {"bill"},
        ("qwen", "inf2.48xlarge"): {"list"},
    }
    assert summaries.bases_used(made, []) == {}


def test_what_a_bill_alone_has_priced_is_in_no_sum_of_list_prices(tmp_path: pathlib.Path) -> None:
    made = Closes(LocalObjects(tmp_path))
    rows = [closed.row(micro_hours=7, uusd_per_hour=None, list_pusd=None, allocated_pusd=5)]
    made.commit(closed.manifest(rows, basis="bill:ab"), rows)
    sums = total(summaries.summarise(made, [Part(one) for one in made.hours(HOURS)], []))
    assert (sums.unlisted_micro_hours, sums.unpriced_micro_hours) == (7, 0)
    assert (sums.list_cost_pusd, sums.cost_pusd) == (None, 5)
