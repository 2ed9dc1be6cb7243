"""What limits there are: of a tenant, its keys, projects and models; and the windows of budgets. Pure.

Scopes within a tenant, as messages, the store and errors name them: `t` the tenant itself, `p:<project>`, `k:<key id>`,
`m:<model id>`. A call is held to the limits of all scopes that it is in: the tightest wins.
"""

import datetime
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from metering.units import NS_PER_HOUR, NS_PER_S

Per = Literal["hour", "day", "month"]
Policy = Literal["open", "closed", "share"]

TENANT = "t"
COUNT_PER_MINUTE_MAX = 10**10
"""A rate above this could not be kept exactly: the store counts in units of a minute's ms, below 2⁵³."""
BEFORE_NS = 1 * NS_PER_S
AHEAD_NS = 10 * NS_PER_S
"""Near the end of a window a call is held in the next one too: it may be admitted a moment after it was asked for."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DIGITS: Mapping[Per, int] = {"month": 6, "day": 8, "hour": 10}


class BudgetTerms(msgspec.Struct, frozen=True, kw_only=True):
    """At most `pusd` in each window. hard: what would pass it is refused. thresholds: percents that are told of."""

    pusd: int
    per: Per
    hard: bool = True
    thresholds: tuple[int, ...] = ()


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one scope; None: no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    budgets: tuple[BudgetTerms, ...] = ()

    @property
    def any(self) -> bool:
        """Is there any limit?"""
        return self != NO_TERMS


NO_TERMS = Terms()


class TenantTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one tenant. keys: by key id; policy: what becomes of them while the store is away."""

    own: Terms = NO_TERMS
    keys: Mapping[str, Terms] = {}
    projects: Mapping[str, Terms] = {}
    models: Mapping[str, Terms] = {}
    policy: Policy = "open"

    @property
    def any(self) -> bool:
        """Is there any limit of anything?"""
        return any(terms.any for terms in (self.own, *self._below()))

    def _below(self) -> Iterator[Terms]:
        for named in (self.keys, self.projects, self.models):
            yield from named.values()

    def of(self, scope: str) -> Terms:
        """The limits of a scope, by its name."""
        kind, _, name = scope.partition(":")
        named = {"k": self.keys, "p": self.projects, "m": self.models}
        return self.own if scope == TENANT else named[kind].get(name, NO_TERMS)

    def scopes(self, project: str | None, key_id: str, model: str) -> list[tuple[str, Terms]]:
        """The scopes with limits that a call is in, each with its limits; the tenant's own first."""
        found = [
            (TENANT, self.own),
            (f"p:{project}", self.projects.get(project or "", NO_TERMS)),
            (f"m:{model}", self.models.get(model, NO_TERMS)),
            (f"k:{key_id}", self.keys.get(key_id, NO_TERMS)),
        ]
        return [(scope, terms) for scope, terms in found if terms.any]


class Era(NamedTuple):
    """A time in which all calls are in the same windows: hours since 1970 (UTC), both included."""

    first_hour: int
    last_hour: int

    def windows(self, per: Per) -> tuple[int, ...]:
        """The windows of calls that are asked for in it, as numbers: one, or two where one is about to end."""
        return tuple(sorted({int(window(per, hour)) for hour in (self.first_hour, self.last_hour)}))


def era(now_ns: int) -> Era:
    """The era of a moment (wall clock, ns since 1970)."""
    return Era((now_ns - BEFORE_NS) // NS_PER_HOUR, (now_ns + AHEAD_NS) // NS_PER_HOUR)


def window(per: Per, hour: int) -> str:
    """The window that an hour (since 1970, UTC) is in: `yyyymm`, `yyyymmdd` or `yyyymmddhh`."""
    return (_EPOCH + datetime.timedelta(hours=hour)).strftime("%Y%m%d%H")[: _DIGITS[per]]


def windows(hour: int) -> tuple[str, str, str]:
    """All three windows that an hour is in: its month, its day, itself."""
    text = (_EPOCH + datetime.timedelta(hours=hour)).strftime("%Y%m%d%H")
    return text[:6], text[:8], text


def end_ns(window: str) -> int:
    """When a window ends, ns since 1970. Raises ValueError if it is none."""
    year, month = int(window[:4]), int(window[4:6])
    if len(window) == _DIGITS["month"]:
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        end = datetime.datetime(year, month, 1, tzinfo=datetime.UTC)
    elif len(window) == _DIGITS["day"]:
        end = datetime.datetime(year, month, int(window[6:8]), tzinfo=datetime.UTC)
        end += datetime.timedelta(days=1)
    else:
        end = datetime.datetime(year, month, int(window[6:8]), int(window[8:]), tzinfo=datetime.UTC)
        end += datetime.timedelta(hours=1)
    return (end - _EPOCH) // datetime.timedelta(seconds=1) * NS_PER_S
