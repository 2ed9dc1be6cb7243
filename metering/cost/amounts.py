"""Sums of rows of closed hours, and the prices that they were split by. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from metering.cost.close_row import RowKind


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of rows (metering/cost/close_row.py has the units).

    unpriced_micro_hours: those whose money is not known; unlisted_micro_hours: those without a list price, which a bill
    may have priced all the same.
    """

    micro_hours: int = 0
    shared_micro_hours: int = 0
    unpriced_micro_hours: int = 0
    unlisted_micro_hours: int = 0
    list_pusd: int = 0
    allocated_pusd: int = 0
    shared_pusd: int = 0
    estimated_pusd: int = 0
    calls: int = 0
    unpriced_calls: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    slot_ns: int = 0
    work_units: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    @property
    def tokens(self) -> int:
        """Prompt, cached or not, and completion."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost_pusd(self) -> int | None:
        """What was allocated; None: it was paid for, and no hour of it has a price."""
        is_unknown = self.micro_hours and self.unpriced_micro_hours == self.micro_hours
        return None if is_unknown else self.allocated_pusd

    @property
    def list_cost_pusd(self) -> int | None:
        """What it costs by list; None: it was paid for, and no hour of it has a list price."""
        is_unknown = self.micro_hours and self.unlisted_micro_hours == self.micro_hours
        return None if is_unknown else self.list_pusd

    @property
    def charge_pusd(self) -> int:
        """What a tenant is charged that pays by allocation: with what was shared out to it."""
        return self.allocated_pusd + self.shared_pusd

    @property
    def estimate_pusd(self) -> int | None:
        """What was estimated; None: there were calls, and none of them has an estimate."""
        return None if self.calls and self.unpriced_calls == self.calls else self.estimated_pusd


class Summary(NamedTuple):
    """The sum of the rows of one kind with the same key: a value for each dimension, None where it has none."""

    kind: RowKind
    key: tuple[str | None, ...]
    amounts: Amounts


def total(summaries: Iterable[Summary], *kinds: RowKind) -> Amounts:
    """The sum of some sums; kinds: of these alone, if there are any."""
    return sum((one.amounts for one in summaries if not kinds or one.kind in kinds), start=Amounts())


class PriceUsed(NamedTuple):
    """A price that closed hours were split by, in µ$ an hour; None: unknown."""

    instance_type: str
    uusd_per_hour: int | None
    purchase_option: str | None
    region: str | None
    source: str | None
    date: str | None
    simulated: bool
    micro_hours: int
