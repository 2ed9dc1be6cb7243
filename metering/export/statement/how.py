"""How a statement's figures were made, in words for whoever gets it, with the prices that they were made by. Pure."""

from collections.abc import Sequence

from metering.cost.charge_terms import Charged
from metering.export import cells
from metering.export.statement.markup import Child, Markup, tag, word
from metering.export.statement.statement import Statement
from metering.export.statement.tables import money, table

_BASIS = {
    Charged.RATE_CARD: (
        "Each call has a price at its end, by the rate card of its model and of the hardware that served it: "
        "(prompt − cached) tokens × prompt price + cached tokens × cached price + completion tokens × completion "
        "price, rounded half up to a picodollar; without a card, by the time that it held one of the server's slots. "
        "The charge for use is the sum of these."
    ),
    Charged.ALLOCATED: (
        "Each hour's paid instance-time is split among those who used it. The charge for use is this tenant's part of "
        "it × the instance's price, with what was shared out to it of what nobody used."
    ),
}
_METHODS = {
    "slot-time": "slot-time: a tenant's slot seconds ÷ (slots × the server's paid time)",
    "busy-time": "busy-time: all of the time in which a server had a call goes to those who were there, by their work",
    "capacity": "capacity: work done ÷ what the hardware can do in its ready time",
}


def section(one: Statement) -> Markup:
    """The last one of the page."""
    made = one.made
    billed = made.hours_billed
    basis = {made.hours_closed: "the bill", 0: "list prices"}.get(
        billed, f"the bill in {billed} of {made.hours_closed} hours, else list prices"
    )
    words = [
        _BASIS[one.charged_by],
        f"Instances cost what they cost by {basis}, from launch to termination.",
        *(f"Time was split by {_METHODS.get(method, method)}." for method in made.methods),
        "Tenants together and what nobody used come to what the instances cost, in every hour, to the picodollar; "
        "a picodollar is 0.000000000001 USD.",
        "The digest is the SHA-256 of a line «hour revision digest» for each closed hour in this statement: the rows "
        "that it names are in the archive, and with them every figure can be had again.",
    ]
    return tag(
        "section",
        tag("h2", "How the figures were made"),
        *(tag("p", text) for text in words),
        *_cards(one),
        *_prices(one),
    )


def _cards(one: Statement) -> list[Markup]:
    if not one.cards:
        return []
    head = [("rate card", False), ("since", False), ("prompt", True), ("cached prompt", True), ("completion", True),
            ("a call", True), ("source", False)]  # fmt: skip
    rows: list[Sequence[Child]] = [
        (
            tag("span", word(f"{card.model}/{card.hardware}"), class_="whole"),
            tag("span", card.date, class_="whole"),
            *(money(pusd) for pusd in (card.prompt, card.cached_prompt, card.completion, card.per_request)),
            word(card.source),
        )
        for card in one.cards
    ]
    return [table("Rate cards that held in the month, in USD per 1M tokens and per call", head, rows)]


def _prices(one: Statement) -> list[Markup]:
    head = [("instance type", False), ("USD an hour", True), ("hours of all tenants", True), ("option", False),
            ("region", False), ("of", False), ("source", False)]  # fmt: skip
    rows: list[Sequence[Child]] = [
        (
            word(each.instance_type),
            "unknown" if each.uusd_per_hour is None else cells.millionths(each.uusd_per_hour),
            cells.millionths(each.micro_hours),
            *(word(text or "") for text in (each.purchase_option, each.region, each.date, each.source)),
        )
        for each in one.prices
    ]
    return [table("List prices of the hardware that served these calls", head, rows)] if rows else []
