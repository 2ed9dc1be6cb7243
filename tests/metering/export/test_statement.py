"""Statements: what they add up to is what the chargeback file says, and what somebody chose as a name stays text."""

import csv
import datetime
import hashlib
import io
import pathlib
import random
import re
from collections.abc import Iterable
from decimal import Decimal

import msgspec
import pytest

from metering.archive.objects import LocalObjects
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_manifest import MonthState, Reason, month_hours
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from metering.export import selection
from metering.export.exports import Format, Options, Stream
from metering.export.statement import gathering, markup, statement_page, statement_style
from metering.export.statement.statement import Statement
from metering.units import NS_PER_HOUR
from tests.support import closed, closed_fleet
from tests.support.statements import Page

MONTH, BEFORE = "2026-02", "2026-01"
HOURS = month_hours(MONTH)
EVIL = '<script>alert("1")</script>\'&\u202eevil\u2066'


@pytest.fixture
def closes(tmp_path: pathlib.Path) -> Closes:
    return Closes(LocalObjects(tmp_path))


def commit(closes: Closes, rows: list[CloseRow], hour: int, **fields: object) -> None:
    closes.commit(closed.manifest(rows, hour=hour, **fields), rows)


def fleet(closes: Closes, seed: int) -> ChargeTerms:
    """Hours of two months, the earlier one closed, and corrected in the later one. returns: how it is charged."""
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    terms = ChargeTerms(
        cards=tuple(cards.values()), chargeback=rng.choice(list(Charged)), account="a", issuer="Example"
    )
    for first in (HOURS.start - 3, HOURS.start + 20):
        for hour in closed_fleet.hours(rng, cards, first=first, count=4 if first > HOURS.start else 3):
            commit(closes, hour.rows, hour.manifest.hour)
    kept = ChargeTerms(cards=terms.cards, chargeback=rng.choice(list(Charged)))
    closes.commit_month(BEFORE, MonthState.CLOSED, bills=(), by="cli:me", at_ns=1, terms=kept)
    again = closed_fleet.hours(rng, cards, first=HOURS.start - 2, count=1)[0]
    at_ns = (HOURS.start + 5) * NS_PER_HOUR
    commit(closes, again.rows, HOURS.start - 2, revision=2, reason=Reason.LATE, closed_ns=at_ns)
    return terms


def statement(closes: Closes, terms: ChargeTerms, tenant: str = "acme", month: str = MONTH) -> Statement:
    found = gathering.gather(closes, tenant=tenant, month=month, terms=terms, created_ns=0)
    assert found is not None
    return found


def page(closes: Closes, terms: ChargeTerms, tenant: str = "acme", month: str = MONTH) -> Page:
    return Page(statement_page.page(statement(closes, terms, tenant, month)))


def chargeback(closes: Closes, terms: ChargeTerms) -> list[dict[str, str]]:
    """The rows of the month's FOCUS chargeback file."""
    found = selection.select(closes, HOURS)
    own = {month: one.terms for month, one in found.closed.items() if one.terms is not None}
    options = Options(own=own, terms=terms)
    stream = Stream(Format.FOCUS_CHARGEBACK, selection.rows(closes, found.parts), options)
    return list(csv.DictReader(io.StringIO(b"".join(stream).decode())))


def billed(rows: Iterable[dict[str, str]], tenant: str, *, is_correction: bool | None = None) -> Decimal:
    return sum(
        (
            Decimal(row["BilledCost"])
            for row in rows
            if row["SubAccountId"] == tenant and is_correction in (None, row["ChargeClass"] == "Correction")
        ),
        start=Decimal(0),
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_total_is_that_of_the_chargeback_file(seed: int, closes: Closes) -> None:
    terms = fleet(closes, seed)
    rows = chargeback(closes, terms)
    for tenant in closed_fleet.TENANTS:
        if gathering.gather(closes, tenant=tenant, month=MONTH, terms=terms, created_ns=0) is None:
            assert billed(rows, tenant) == 0
            continue
        made = page(closes, terms, tenant)
        assert Decimal(made.text("#total")) == billed(rows, tenant)
        summary = dict(made.table("What the total").rows)
        corrections = billed(rows, tenant, is_correction=True)
        assert Decimal(summary["Corrections of months that were closed"]) == corrections
        assert Decimal(summary["Total"]) == sum(Decimal(v) for k, v in summary.items() if k != "Total")


@pytest.mark.parametrize("seed", range(2))
def test_every_table_of_use_adds_up_to_the_same(seed: int, closes: Closes) -> None:
    terms = fleet(closes, seed)
    made = page(closes, terms)
    use = dict(made.table("What the total").rows)
    (charged,) = {value for name, value in use.items() if name.startswith("Use, ")}
    for caption in ("Use by project", "Use by day", "Use by cost centre"):
        table = made.table(caption)
        *parts, last = table.column("USD")
        assert sum(map(Decimal, parts)) == Decimal(last) == Decimal(charged)
        for name in ("calls", "prompt tokens", "of them cached", "completion tokens"):
            *counts, whole = (int(text.replace(",", "")) for text in table.column(name))
            assert sum(counts) == whole
    assert [len(text.partition(".")[2]) for text in made.table("Use by day").column("USD")] == [12] * len(
        made.table("Use by day").rows
    )


@pytest.mark.parametrize("seed", range(2))
def test_usage_and_price_explain_the_difference(seed: int, closes: Closes) -> None:
    made = page(closes, fleet(closes, seed))
    table = made.table("Why the charge for use differs")
    for before, usage, price, now in zip(
        *(map(Decimal, table.column(name)) for name in ("before", "usage", "price", "now")), strict=True
    ):
        assert before + usage + price == now
    assert (
        table.column("now")[-1]
        == dict(made.table("What the total").rows)[
            next(name for name, _ in made.table("What the total").rows if name.startswith("Use, "))
        ]
    )


def test_the_servers_cost_what_their_parts_come_to(closes: Closes) -> None:
    made = page(closes, fleet(closes, 5))
    *parts, whole = made.table("What the servers of llama").column("USD")
    assert sum(map(Decimal, parts)) == Decimal(whole)


def tenant_row(**fields: object) -> CloseRow:
    values = {
        "kind": RowKind.TENANT, "tenant": "acme", "model": "llama", "operation": "chat", "micro_hours": 5, "calls": 1,
        "prompt_tokens": 7, "estimated_pusd": 11,
    }  # fmt: skip
    return closed.row(HOURS.start, **values | fields)


def test_what_somebody_chose_is_text(closes: Closes) -> None:
    row = tenant_row(
        project=EVIL, model=EVIL, pool=EVIL, instance_family=EVIL, instance_type=EVIL, price_source=EVIL, region=EVIL,
        tags={"cost-center": EVIL}, price_date=EVIL,
    )  # fmt: skip
    shared = closed.row(HOURS.start, kind=RowKind.SHARED_COST, tenant="acme", backend=EVIL, allocated_pusd=3)
    commit(closes, [row, shared], HOURS.start)
    made = page(
        closes, ChargeTerms(account=EVIL, issuer=EVIL)
    )  # Page refuses any element that it does not know
    assert "script" not in made.texts
    assert made.text("bdi").count('<script>alert("1")</script>\'&⟨U+202E⟩evil⟨U+2066⟩') >= 9
    everything = statement_page.page(statement(closes, ChargeTerms(account=EVIL, issuer=EVIL))).decode()
    assert "\u202e" not in everything
    assert "\u2066" not in everything
    assert "<script" not in everything


def test_nothing_is_loaded(closes: Closes) -> None:
    made = page(closes, fleet(closes, 1))
    assert made.language == "en"
    assert not re.search(r"url\(|@import|https?:", made.text("style"))
    assert all(table.caption and table.head for table in made.tables)
    assert "table-header-group" in made.text("style")
    assert "@page" in made.text("style")


@pytest.mark.parametrize(
    ("ink", "behind"),
    [
        ("ink", "#ffffff"),
        ("grey", "#ffffff"),
        ("mark", "#ffffff"),
        ("ink", "head"),
        ("grey", "head"),
        ("ink", "note"),
    ],
)
def test_text_can_be_read(ink: str, behind: str) -> None:
    """By the formula of WCAG 2.2."""
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", statement_style.STYLE))
    brighter, darker = (_luminance(colours.get(name, name)) for name in (behind, ink))
    assert (brighter + 0.05) / (darker + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_head_says_whose_and_of_when(closes: Closes) -> None:
    commit(closes, [tenant_row(tags={"cost-center": "cc-1"})], HOURS.start)
    made = page(closes, ChargeTerms(account="platform", issuer="Example Corp"))
    facts = made.text("dl")
    for words in (
        "Example Corp, account platform",
        "cc-1",
        "2026-02-01T00:00:00Z up to, and without, 2026-03-01T00:00:00Z",
        "provisional",
        "1 of 672 closed; revision 1: 1 hours",
        "1970-01-01T00:00:00Z",
    ):
        assert words in facts
    assert "671 of 672 hours of this month are not closed" in made.text("p")
    assert "Nothing is known of the month before" in made.text("p")


def test_the_digest_is_of_the_rows_that_the_manifest_of_an_export_names(closes: Closes) -> None:
    terms = fleet(closes, 2)
    lines = [
        f"{part.manifest.hour} {part.manifest.revision} {part.manifest.rows.sha256}"
        for part in selection.select(closes, HOURS).parts
    ]
    texts = "".join(
        f"{_hour(int(hour))} {rest}\n" for hour, _, rest in (line.partition(" ") for line in lines)
    )
    assert hashlib.sha256(texts.encode()).hexdigest() in page(closes, terms).text("dd")


def _hour(hour: int) -> str:
    return (datetime.datetime(1970, 1, 1) + datetime.timedelta(hours=hour)).strftime("%Y-%m-%dT%H")


@pytest.mark.parametrize("by", list(Charged))
def test_what_has_no_price_is_unknown_and_not_0(by: Charged, closes: Closes) -> None:
    row = tenant_row(
        uusd_per_hour=None, list_pusd=None, allocated_pusd=None, estimated_pusd=0, unpriced_calls=1
    )
    commit(closes, [row], HOURS.start, unpriced=("inf2.48xlarge",))
    made = page(closes, ChargeTerms(chargeback=by))
    assert made.text("#total") == "unknown"
    assert made.table("Use by day").column("USD") == ["unknown", "unknown"]
    assert made.table("What the servers of llama").column("USD") == ["unknown", "unknown"]
    note = "1 calls have no price" if by is Charged.RATE_CARD else "0.000005 instance-hours have no price"
    assert note in made.text("p")


def test_simulated_hardware_and_what_is_missing_are_said(closes: Closes) -> None:
    commit(closes, [tenant_row()], HOURS.start, simulated=("inf2.48xlarge",), missing=("w1",))
    said = page(closes, ChargeTerms()).text("p")
    assert "Simulated hardware (inf2.48xlarge)" in said
    assert "1 journals could not be read" in said


def test_a_whole_month_has_no_note(closes: Closes) -> None:
    commit(closes, [tenant_row()], HOURS.start)
    found = statement(closes, ChargeTerms())
    whole = msgspec.structs.replace(found, made=msgspec.structs.replace(found.made, not_closed=()))
    assert "not closed" not in Page(statement_page.page(whole)).text("p")


def test_the_bill_is_named_where_it_counts(closes: Closes) -> None:
    commit(closes, [tenant_row()], HOURS.start, basis="bill:ab")
    commit(closes, [closed.row(HOURS.start + 1, micro_hours=3)], HOURS.start + 1)
    assert "by the bill in 1 of 2 hours, else list prices" in page(closes, ChargeTerms()).text("p")


def test_nobody_has_no_statement(closes: Closes) -> None:
    commit(closes, [tenant_row()], HOURS.start)
    assert gathering.gather(closes, tenant="other", month=MONTH, terms=ChargeTerms(), created_ns=0) is None
    with pytest.raises(ValueError, match="is no month"):
        gathering.gather(closes, tenant="acme", month="2026-2", terms=ChargeTerms(), created_ns=0)


def test_a_closed_month_is_the_same_whatever_is_configured_later(closes: Closes) -> None:
    commit(closes, [tenant_row()], HOURS.start)
    kept = ChargeTerms(account="then", chargeback=Charged.ALLOCATED)
    closes.commit_month(MONTH, MonthState.CLOSED, bills=(), by="cli:me", at_ns=1, terms=kept)
    one = statement_page.page(statement(closes, kept))
    commit(closes, [tenant_row(calls=9)], HOURS.start, revision=2, reason=Reason.LATE, closed_ns=2**62)
    assert statement_page.page(statement(closes, ChargeTerms(account="now"))) == one


@pytest.mark.parametrize("broken", ["escaping", "direction", "shared costs", "corrections", "sharing"])
def test_a_broken_law_is_found(broken: str, closes: Closes, monkeypatch: pytest.MonkeyPatch) -> None:
    match broken:
        case "escaping":
            monkeypatch.setattr(markup.html, "escape", lambda text: text)
        case "direction":
            monkeypatch.setattr(markup, "_SHOWN_CATEGORIES", ())
        case "shared costs":
            monkeypatch.setattr(Statement, "shared_costs_pusd", 0)
        case "corrections":
            monkeypatch.setattr(gathering, "_corrections", lambda *_: ())
        case "sharing":
            monkeypatch.setattr(
                "metering.cost.amounts.Amounts.charge_pusd", property(lambda one: one.allocated_pusd)
            )
    law = test_what_somebody_chose_is_text if broken in ("escaping", "direction") else _one_of_all
    with pytest.raises(AssertionError):
        law(closes)


def _one_of_all(closes: Closes) -> None:
    """A month with all that a total consists of, against the chargeback file."""
    terms = ChargeTerms(chargeback=Charged.ALLOCATED)
    old = HOURS.start - 1
    commit(closes, [earlier_row(old, calls=1)], old)
    closes.commit_month(BEFORE, MonthState.CLOSED, bills=(), by="cli:me", at_ns=1, terms=terms)
    at_ns = (HOURS.start + 1) * NS_PER_HOUR
    commit(closes, [earlier_row(old, micro_hours=9)], old, revision=2, reason=Reason.LATE, closed_ns=at_ns)
    shared = closed.row(HOURS.start, kind=RowKind.SHARED_COST, tenant="acme", backend="redis", list_pusd=3,
                        allocated_pusd=3, uusd_per_hour=None, instance_id=None)  # fmt: skip
    row = tenant_row(shared_micro_hours=2, shared_pusd=2 * 12_981_270)
    commit(closes, [row, shared], HOURS.start)
    assert Decimal(page(closes, terms).text("#total")) == billed(chargeback(closes, terms), "acme")


def earlier_row(hour: int, **fields: object) -> CloseRow:
    values = {
        "kind": RowKind.TENANT,
        "tenant": "acme",
        "model": "llama",
        "operation": "chat",
        "micro_hours": 5,
    }
    return closed.row(hour, **values | fields)


def test_the_month_of_all_that_a_total_consists_of(closes: Closes) -> None:
    _one_of_all(closes)
