"""FOCUS *chargeback*: what each tenant is charged, and for each pool and hour what that leaves uncovered. Pure.

    by rate card   a row for each kind of tokens (prompt, cached prompt, completion) and for requests: price × quantity
    allocated      a row for each key: its part of the instance-hours; tokens are what it consumed

A tenant is a sub-account. For each pool (the model that a backend serves; none for what no backend owns) and hour one
adjustment, `under_recovery`: what the instances cost less what tenants were charged, negative where they were charged
more. So the file's sum, by pool and hour, is that of the split file. What the instances cost must be known for that.

A call's cost was rounded to a picodollar when it ended. Where the cards in force do not explain the charge of a key to
within that (the card changed within the hour, kinds of usage besides tokens), it stands in one row, `calls`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import msgspec

from metering.cost.charge_terms import Charged
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.pricing import RateCard
from metering.export.export_parts import ExportRow, Part
from metering.export.focus.charge import (
    MICRO,
    PER_MTOK,
    REQUESTS,
    TOKENS,
    UNITS,
    Category,
    Charge,
    Priced,
    Quantity,
    Resource,
)
from metering.export.focus.split import SHARED_COST, cost_ausd, priced_hours, resource
from metering.units import NS_PER_HOUR, div_half_up

MODEL = "Model"
CardOf = Callable[[CloseRow], RateCard | None]
"""The rate card that a row's calls were priced by; None: there is none."""

_ATTO_PER_PICO = 1_000_000
_ROUNDED_AUSD_MAX = _ATTO_PER_PICO // 2
"""By how much the rounding of one call moves its cost at most."""


def cards_in_force(cards: Iterable[RateCard]) -> CardOf:
    """Of these cards the newest that held when the hour began: the instance type's, else its family's."""
    of: dict[tuple[str, str], list[RateCard]] = {}
    for card in sorted(cards, key=lambda card: card.since_ns):
        of.setdefault((card.model, card.hardware), []).append(card)

    def find(row: CloseRow) -> RateCard | None:
        for hardware in (row.instance_type, row.instance_family):
            known = of.get((row.pool or "", hardware or ""), [])
            held = [card for card in known if card.since_ns <= row.hour * NS_PER_HOUR]
            if held:
                return held[-1]
        return None

    return find


def charges(rows: Iterable[ExportRow], by: Charged, card_of: CardOf) -> Iterator[Charge]:
    """Rows of a chargeback file: of each hour its tenants', in the order of the closed rows, then its pools'."""
    for part, group in itertools.groupby(rows, key=lambda each: each.part):
        pools: dict[str, _Pool] = {}
        for each in group:
            row = each.row
            pool = pools.setdefault(row.pool or "", _Pool(row))
            pool.add(row)
            if row.tenant is None:
                continue
            if row.kind is RowKind.SHARED_COST:
                made = _shared_cost(row, part)
            else:
                made = _by_card(row, part, card_of(row)) if by is Charged.RATE_CARD else _allocated(row, part)
            for charge in made:
                pool.charged_ausd += part.sign * charge.cost_ausd
                yield charge
        for _, pool in sorted(pools.items()):
            if pool.is_priced:
                yield _under_recovery(pool, part)


class _Pool:
    """An hour of a pool. first: one of its rows. is_priced: what all of its hardware cost is known."""

    def __init__(self, first: CloseRow) -> None:
        self.first = first
        self.cost_ausd = 0
        self.charged_ausd = 0
        self.is_priced = True

    def add(self, row: CloseRow) -> None:
        """One more of its rows."""
        cost = cost_ausd(row)
        self.cost_ausd += cost or 0
        self.is_priced &= cost is not None or not row.micro_hours


def _shared_cost(row: CloseRow, part: Part) -> Iterator[Charge]:
    if cost := cost_ausd(row):
        yield _adjustment(row, part, row.tenant, f"{SHARED_COST} {row.backend}", cost, row)


def _by_card(row: CloseRow, part: Part, card: RateCard | None) -> Iterator[Charge]:
    """The charge of a key by kinds of tokens, if the card explains it; else as one."""
    charged = row.estimated_pusd * _ATTO_PER_PICO
    kinds = [] if card is None else _kinds(row, card)
    rest = charged - sum(priced.cost_ausd for priced, _ in kinds)
    if card is not None and card.per_request:
        requests = _requests(row, card, rest)
        kinds.append((requests, Quantity(requests.quantity.micro, REQUESTS)))
        rest -= requests.cost_ausd
    if card is None or abs(rest) > row.calls * _ROUNDED_AUSD_MAX:
        kinds, rest = [_as_one(row)] if charged else [], 0
    amounts: CloseRow | None = row
    for priced, consumed in kinds:
        if priced.quantity.micro:
            yield _charge(row, part, priced, consumed, amounts)
            amounts = None
    if rest:
        yield _rounding(row, part, rest)


def _kinds(row: CloseRow, card: RateCard) -> list[tuple[Priced, Quantity]]:
    """What each kind of tokens costs by the card, and how many were consumed."""
    kinds = (
        ("prompt", "Prompt Tokens", row.prompt_tokens - row.cached_prompt_tokens, card.prompt),
        ("cached-prompt", "Cached Prompt Tokens", row.cached_prompt_tokens, card.cached_prompt),
        ("completion", "Completion Tokens", row.completion_tokens, card.completion),
    )
    of_hardware = f"{card.model}/{card.hardware}"
    return [
        (
            Priced(
                quantity=Quantity(tokens, PER_MTOK),
                pusd=pusd_per_mtok,
                sku=f"{of_hardware}/{kind}",
                meter=meter,
                sku_price=f"{card.id}/{kind}",
                details=(("x_Hardware", card.hardware), ("x_Model", card.model), ("x_Tokens", kind)),
            ),
            Quantity(tokens * MICRO, TOKENS),
        )
        for kind, meter, tokens, pusd_per_mtok in kinds
    ]


def _requests(row: CloseRow, card: RateCard, rest: int) -> Priced:
    """Those of a key's calls that were charged per request: what the tokens leave says how many. rest: attodollars."""
    per_request = card.per_request * _ATTO_PER_PICO
    count = min(div_half_up(max(0, rest), per_request), row.calls)
    of_hardware = f"{card.model}/{card.hardware}"
    return Priced(
        quantity=Quantity(count * MICRO, REQUESTS),
        pusd=card.per_request,
        sku=f"{of_hardware}/request",
        meter="Requests",
        sku_price=f"{card.id}/request",
        details=(("x_Hardware", card.hardware), ("x_Model", card.model)),
    )


def _as_one(row: CloseRow) -> tuple[Priced, Quantity]:
    hardware = row.instance_family or "unknown"
    sku = f"{row.pool or row.model}/{hardware}/calls"
    details = (("x_Hardware", hardware), ("x_Model", row.pool or row.model or ""))
    priced = Priced(
        quantity=Quantity(MICRO, UNITS),
        pusd=row.estimated_pusd,
        sku=sku,
        meter="Calls",
        sku_price=sku,
        details=details,
        category="Dynamic",
    )
    return priced, _tokens(row)


def _tokens(row: CloseRow) -> Quantity:
    return Quantity((row.prompt_tokens + row.completion_tokens) * MICRO, TOKENS)


def _allocated(row: CloseRow, part: Part) -> Iterator[Charge]:
    cost = cost_ausd(row)
    if cost is None or not (cost or row.micro_hours):
        return
    priced = priced_hours(row, 1)
    if priced is None:
        yield _adjustment(row, part, row.tenant, f"hours of {row.pool or row.backend}", cost, row)
        return
    yield _charge(row, part, priced, _tokens(row), row, cost)


def _charge(
    row: CloseRow,
    part: Part,
    priced: Priced,
    consumed: Quantity,
    amounts: CloseRow | None,
    cost: int | None = None,
) -> Charge:
    """cost: None: list price × quantity."""
    sign = part.sign
    quantity = Quantity(sign * priced.quantity.micro, priced.quantity.unit)
    return Charge(
        hour=row.hour,
        billed_in=part.billed_in,
        revision=part.manifest.revision,
        correction=part.correction,
        category=Category.USAGE,
        description=f"{priced.meter} of {row.model} by {row.tenant}",
        cost_ausd=sign * (priced.cost_ausd if cost is None else cost),
        list_ausd=sign * priced.cost_ausd,
        priced=msgspec.structs.replace(priced, quantity=quantity),
        consumed=Quantity(sign * consumed.micro, consumed.unit),
        resource=_model(row),
        tenant=row.tenant,
        tags=row.tags or None,
        of=row,
        row=amounts,
    )


def _rounding(row: CloseRow, part: Part, rest: int) -> Charge:
    return _adjustment(row, part, row.tenant, f"rounding of {row.calls} calls to picodollars", rest, None)


def _under_recovery(pool: _Pool, part: Part) -> Charge:
    rest = pool.cost_ausd - pool.charged_ausd
    name = pool.first.pool or "what no backend owns"
    return _adjustment(pool.first, part, None, f"under_recovery: {name}", rest, None)


def _adjustment(
    row: CloseRow, part: Part, tenant: str | None, what: str, cost: int, amounts: CloseRow | None
) -> Charge:
    return Charge(
        hour=row.hour,
        billed_in=part.billed_in,
        revision=part.manifest.revision,
        correction=part.correction,
        category=Category.ADJUSTMENT,
        description=what,
        cost_ausd=part.sign * cost,
        list_ausd=part.sign * cost,
        resource=_model(row),
        tenant=tenant,
        tags=(row.tags or None) if tenant is not None else None,
        of=row,
        row=amounts,
    )


def _model(row: CloseRow) -> Resource | None:
    name = row.pool or row.model
    return resource(row) if name is None else Resource(name, MODEL)
