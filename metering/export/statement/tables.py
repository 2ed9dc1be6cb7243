"""Tables and amounts of a statement, as HTML. Pure."""

from collections.abc import Iterable, Sequence

from metering.export import cells
from metering.export.statement.markup import Child, Markup, join, tag

_CENTS = 2

Head = Sequence[tuple[str, bool]]
"""Each column's name, and whether it is a number."""


def money(pusd: int | None) -> Markup:
    """An amount in USD, exact, the cents larger than what follows them. None: unknown."""
    if pusd is None:
        return tag("span", "unknown", class_="none")
    text = cells.usd(pusd)
    end = text.index(".") + 1 + _CENTS
    return join(text[:end], tag("span", text[end:], class_="tail"))


def table(caption: Child, head: Head, rows: Iterable[Sequence[Child]], last: Sequence[Child] = ()) -> Markup:
    """The first cell of a row is its head; last: the sum."""
    columns = [tag("th", name, scope="col", **_number(is_number)) for name, is_number in head]
    body = [tag("tr", *_row(row, head)) for row in rows]
    if last:
        body.append(tag("tr", *_row(last, head), class_="sum"))
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", *columns)), tag("tbody", *body))
    return tag("div", made, class_="wide")


def _row(row: Sequence[Child], head: Head) -> list[Markup]:
    first, *others = row
    found = [tag("th", first, scope="row")]
    for cell, (_, is_number) in zip(others, head[1:], strict=True):
        found.append(tag("td", cell, **_number(is_number)))
    return found


def _number(is_number: bool) -> dict[str, str]:
    return {"class_": "n"} if is_number else {}
