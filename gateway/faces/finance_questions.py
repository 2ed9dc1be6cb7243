"""What can be asked of the finance face, and the form in which it goes to the process that answers. Pure.

Names and sizes are looked at here; what a moment, a zone or a dimension means is found out by the process, since a
worker's loop has calls to carry: that may read files.
"""

from typing import Literal

import msgspec

from gateway.api.errors import InvalidRequest, NotFound
from gateway.configuration.config import Config
from gateway.faces import queries
from gateway.faces.queries import Query
from metering.export import row_cursor
from metering.export.row_cursor import Cursor, NotACursor

ROWS_DEFAULT = 1_000
ROWS_MAX = 5_000
"""Of a page: about 4 MB of JSON, which the worker holds."""
DIMENSIONS_MAX = 8
DOWNLOADS: tuple[str, ...] = ("focus-split", "focus-chargeback", "csv", "json")

Charged = Literal["rate-card", "allocated"]


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Half-open, as it was written. zone: whose days dates are."""

    start: str
    end: str
    zone: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary"):
    """Sums by these dimensions; by none: one for each kind."""

    period: Period
    by: tuple[str, ...]


class Rows(msgspec.Struct, frozen=True, kw_only=True, tag="rows"):
    """A page of allocated rows. period: of the first page, and None or the same of those that a cursor begins."""

    period: Period | None
    cursor: Cursor | None
    limit: int


class Export(msgspec.Struct, frozen=True, kw_only=True, tag="export"):
    """A file, or only its manifest. charged: None: as the configuration says."""

    form: str
    period: Period
    focus_version: str | None
    charged: Charged | None
    omit_unpriced: bool
    is_manifest: bool


class Hours(msgspec.Struct, frozen=True, kw_only=True, tag="hours"):
    """What the revisions of these hours say of themselves."""

    period: Period


class Months(msgspec.Struct, frozen=True, kw_only=True, tag="months"):
    """The state of each month, and all that it was before."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, tag="prices"):
    """The price book at a moment; None: now."""

    at: str | None


class Waterfall(msgspec.Struct, frozen=True, kw_only=True, tag="waterfall"):
    """Where a month's money went, of each pool."""

    month: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A tenant's month beside the one before."""

    month: str
    tenant: str


class Statement(msgspec.Struct, frozen=True, kw_only=True, tag="statement"):
    """A tenant's month as a page."""

    month: str
    tenant: str


Question = Summary | Rows | Export | Hours | Months | Prices | Waterfall | Report | Statement


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the answering process is started with."""

    config: Config
    question: Question


def summary(query: Query) -> Summary:
    """Raises InvalidRequest."""
    queries.known(query, "from", "to", "tz", "by")
    by = queries.text(query, "by")
    names = () if by is None else tuple(by.split(","))
    if len(names) > DIMENSIONS_MAX:
        raise InvalidRequest(f"by takes {DIMENSIONS_MAX} names at most", param="by")
    return Summary(period=_period(query), by=names)


def rows(query: Query) -> Rows:
    """Raises InvalidRequest."""
    queries.known(query, "from", "to", "tz", "cursor", "limit")
    has_period = "cursor" not in query or "from" in query or "to" in query
    try:
        cursor = row_cursor.decode(query["cursor"]) if "cursor" in query else None
    except NotACursor as error:
        raise InvalidRequest(str(error), param="cursor") from error
    return Rows(
        period=_period(query) if has_period else None,
        cursor=cursor,
        limit=queries.number(query, "limit", ROWS_DEFAULT, ROWS_MAX),
    )


def export(form: str, query: Query, *, is_manifest: bool) -> Export:
    """form: as the path has it. Raises NotFound: none that is sent; InvalidRequest."""
    if form == "parquet":
        raise NotFound("Parquet is a directory of files: `weighbridge export --format parquet` writes it")
    if form not in DOWNLOADS:
        raise NotFound(f"there is no export {form[: queries.TEXT_MAX]!r}; there is {', '.join(DOWNLOADS)}")
    of_focus = ("focus_version", "omit_unpriced") if form.startswith("focus-") else ()
    of_chargeback = ("chargeback",) if form == "focus-chargeback" else ()
    queries.known(query, "from", "to", "tz", *of_focus, *of_chargeback)
    charged = queries.choice(query, "chargeback", "rate-card", "allocated")
    return Export(
        form=form,
        period=_period(query),
        focus_version=queries.choice(query, "focus_version", "1.2", "1.3", "1.4"),
        charged=None if charged is None else msgspec.convert(charged, Charged),
        omit_unpriced=queries.choice(query, "omit_unpriced", "true", "false") == "true",
        is_manifest=is_manifest,
    )


def hours(query: Query) -> Hours:
    """Raises InvalidRequest."""
    queries.known(query, "from", "to", "tz")
    return Hours(period=_period(query))


def months(query: Query) -> Months:
    """Raises InvalidRequest."""
    queries.known(query)
    return Months()


def prices(query: Query) -> Prices:
    """Raises InvalidRequest."""
    queries.known(query, "at")
    return Prices(at=queries.text(query, "at"))


def waterfall(query: Query) -> Waterfall:
    """Raises InvalidRequest."""
    queries.known(query, "month")
    return Waterfall(month=queries.needed(query, "month"))


def report(query: Query) -> Report:
    """Raises InvalidRequest."""
    queries.known(query, "month", "tenant")
    return Report(month=queries.needed(query, "month"), tenant=queries.needed(query, "tenant"))


def statement(tenant: str, query: Query) -> Statement:
    """tenant: as the path has it. Raises InvalidRequest."""
    queries.known(query, "month")
    return Statement(
        month=queries.needed(query, "month"), tenant=queries.needed({"tenant": tenant}, "tenant")
    )


def _period(query: Query) -> Period:
    return Period(
        start=queries.needed(query, "from"),
        end=queries.needed(query, "to"),
        zone=queries.text(query, "tz") or "UTC",
    )
