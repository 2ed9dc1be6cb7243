"""What stands beside an export of closed hours: `<out>.manifest.json`. Pure.

It is put last: an export without one is not whole. Fields: deploy/reference/commands.md.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from metering.cost.charge_terms import Charged
from metering.cost.close_manifest import hour_text
from metering.export.export_parts import Part
from metering.export.focus.table import moment
from metering.periods import instant_text

MANIFEST_SUFFIX = ".manifest.json"


class HourIn(msgspec.Struct, frozen=True, kw_only=True):
    """A closed hour that is in an export. rows_sha256: of its file, so that it can be found in the archive."""

    basis: str
    closed: str
    correction: str | None
    hour: str
    reason: str
    revision: int
    rows_sha256: str


class JournalSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How far a journal went into these hours: the leaf binds every line up to `seq`; a checkpoint signs it."""

    leaf: str
    seq: int
    writer: str


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The file itself. files: how many, if it is a directory; then sha256 is that of `sha256sum`'s list of them."""

    bytes: int
    files: int = 1
    name: str
    rows: int
    sha256: str
    sums: dict[str, str]


class TermsUsed(msgspec.Struct, frozen=True, kw_only=True):
    """How a month of a FOCUS file is charged, and by whom. kept: it was closed with that; else the configuration's.

    chargeback, cards (their ids): of a chargeback; of a split file null and none.
    """

    account: str
    cards: tuple[str, ...]
    chargeback: Charged | None
    issuer: str
    kept: bool


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Moments are UTC; the period is half-open; sums are decimal strings in USD.

    months: the state of each month of the period. complete: every hour of the period is closed and its prices are
    known; not_closed: spans that are not, as «first/behind last»; missing: writers whose journals could not be read
    when an hour was closed. terms: by month; of FOCUS.
    """

    columns: tuple[str, ...]
    complete: bool
    created: str
    currency: str = "USD"
    file: Made
    focus_version: str | None
    format: str
    from_hour: str
    generator: str
    hours: tuple[HourIn, ...]
    journals: tuple[JournalSeen, ...]
    methods: tuple[str, ...]
    missing: tuple[str, ...]
    months: dict[str, str]
    not_closed: tuple[str, ...]
    prices: tuple[str, ...]
    schema_sha256: str
    sharing: tuple[str, ...]
    terms: dict[str, TermsUsed]
    time_zone: str
    to_hour: str
    unpriced: tuple[str, ...]
    v: int = 1


def encode(manifest: ExportManifest) -> bytes:
    """As it stands in its file."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"


def schema_sha256(columns: Sequence[str]) -> str:
    """Of the columns' names in their order, one a line."""
    return hashlib.sha256("".join(f"{name}\n" for name in columns).encode()).hexdigest()


def hours_in(parts: Iterable[Part]) -> tuple[HourIn, ...]:
    """The closed hours of an export, in its order."""
    return tuple(
        HourIn(
            basis=one.manifest.basis,
            closed=instant_text(one.manifest.closed_ns),
            correction=one.correction and one.correction.value,
            hour=hour_text(one.manifest.hour),
            reason=one.manifest.reason.value,
            revision=one.manifest.revision,
            rows_sha256=one.manifest.rows.sha256,
        )
        for one in parts
    )


def journals_seen(parts: Iterable[Part]) -> tuple[JournalSeen, ...]:
    """The furthest line of each journal that went into these hours."""
    furthest: dict[str, JournalSeen] = {}
    for part in parts:
        for one in part.manifest.writers:
            if one.writer not in furthest or furthest[one.writer].seq < one.seq:
                furthest[one.writer] = JournalSeen(leaf=one.leaf, seq=one.seq, writer=one.writer)
    return tuple(furthest[writer] for writer in sorted(furthest))


def spans(hours: Iterable[int]) -> tuple[str, ...]:
    """Hours as half-open spans, each as «first/behind last»."""
    found: list[tuple[int, int]] = []
    for hour in sorted(hours):
        if found and found[-1][1] == hour:
            found[-1] = found[-1][0], hour + 1
        else:
            found.append((hour, hour + 1))
    return tuple(f"{moment(first)}/{moment(end)}" for first, end in found)


def different(words: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(sorted(set(words)))
