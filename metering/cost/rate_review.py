"""Rate cards from measurement: what tokens would have to cost for an instance to be paid for. Pure.

    price of a work unit = instance price per hour ÷ (work units per hour at capacity × target utilisation)
    price of a token     = its work-unit weight × that

At capacity every slot is in use. From closed hours, capacity is the work that tenants had done ÷ the instance-hours
that their calls took of it (by slot time): what one hour yields while it is used. A server that is full is slower for
each call than one that is not, so hours of little use promise too much. From a benchmark it is its rate at the
greatest load, for as much of the instance as it used.
"""

import fractions
from collections.abc import Iterable

import msgspec

from metering.cost.close_row import CloseRow, RowKind
from metering.cost.work_units import WorkUnits
from metering.units import PICO_USD_PER_MICRO_USD, TOKENS_PER_MTOK, div_half_up

_PUSD_STEP = 1_000_000
"""Proposed prices are whole micro-dollars per 1M tokens: more digits would pretend to know more."""
MICRO_HOURS = 1_000_000


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Token prices of a card, in picodollars per 1M tokens."""

    prompt: int
    cached_prompt: int
    completion: int


class Yield(msgspec.Struct, frozen=True, kw_only=True):
    """What closed hours of one model on one instance type have yielded.

    micro_hours: those that tenants' calls took; paid_micro_hours: those of all rows of these pools, the unused too.
    newest: the latest of the rows. simulated: some of them are.
    """

    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    micro_hours: int
    paid_micro_hours: int
    newest: CloseRow
    simulated: bool

    def per_hour(self, weights: WorkUnits) -> fractions.Fraction:
        """Work units an hour of the whole instance, while it is used."""
        work = weights.of(self.prompt_tokens, self.cached_prompt_tokens, self.completion_tokens)
        return fractions.Fraction(work * MICRO_HOURS, self.micro_hours)


def propose(
    uusd_per_hour: int, per_hour: fractions.Fraction, weights: WorkUnits, utilisation: fractions.Fraction
) -> Proposal:
    """The card that pays for an instance which is used so much. per_hour: work units of the whole instance."""
    assert per_hour > 0
    assert 0 < utilisation <= 1
    pusd = fractions.Fraction(uusd_per_hour * PICO_USD_PER_MICRO_USD * TOKENS_PER_MTOK) / (
        per_hour * utilisation
    )
    return Proposal(
        prompt=_rounded(pusd * weights.prompt),
        cached_prompt=_rounded(pusd * weights.cached_prompt),
        completion=_rounded(pusd * weights.completion),
    )


def yields(rows: Iterable[CloseRow]) -> dict[tuple[str, str], Yield]:
    """What rows of closed hours say of each (model, instance type) that tenants have used."""
    found: dict[tuple[str, str], Yield] = {}
    paid: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.pool is None or row.instance_type is None:
            continue
        key = row.pool, row.instance_type
        paid[key] = paid.get(key, 0) + row.micro_hours
        if row.kind is not RowKind.TENANT:
            continue
        before = found.get(key)
        found[key] = Yield(
            calls=row.calls + (before.calls if before else 0),
            prompt_tokens=row.prompt_tokens + (before.prompt_tokens if before else 0),
            cached_prompt_tokens=row.cached_prompt_tokens + (before.cached_prompt_tokens if before else 0),
            completion_tokens=row.completion_tokens + (before.completion_tokens if before else 0),
            micro_hours=row.micro_hours + (before.micro_hours if before else 0),
            paid_micro_hours=0,
            newest=row,
            simulated=row.simulated or (before is not None and before.simulated),
        )
    return {
        key: msgspec.structs.replace(one, paid_micro_hours=paid[key])
        for key, one in found.items()
        if one.micro_hours and one.completion_tokens + one.prompt_tokens
    }


def _rounded(pusd: fractions.Fraction) -> int:
    return div_half_up(pusd.numerator, pusd.denominator * _PUSD_STEP) * _PUSD_STEP
