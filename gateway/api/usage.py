"""GET /v1/usage: what a key's own limits are, what is left of them, and what its tenant has spent.

Limits are told as the store has them at the moment, those that any call of the key may be held to. Spending is what the
ledger knows, a second behind the calls; what calls under way hold of a budget is not in it. Money is a decimal string.
"""

import asyncio
import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.auth import Principal
from gateway.api.openai_api import entered, listed
from gateway.directory.entrance import Entrance
from metering.ledger.store import StoreUnavailable
from metering.limits import terms
from metering.limits.asks import Rate, Scope, tightest
from metering.limits.desk import scope_words
from metering.limits.terms import BudgetTerms
from metering.units import NS_PER_HOUR, NS_PER_S, usd_text

Json = dict[str, Any]


class Limiter(Protocol):
    """Who holds calls to limits: metering/limits/limiter.py."""

    @property
    def is_away(self) -> bool:
        """Can some limits not be checked now?"""

    async def standing(self, principal: Principal, models: Iterable[str]) -> Sequence[Scope]:
        """The scopes with limits of such calls, as they stand."""


class Ledger(Protocol):
    """Where spending is known: metering/ledger/store.py."""

    async def spent(self, tenant: str, windows: Sequence[str]) -> Sequence[dict[str, int]]:
        """Picodollars by scope, of each window. Raises StoreUnavailable."""


class UsageApi:
    """The page. models: ids of all that are served. wall_ns: since 1970."""

    def __init__(
        self,
        *,
        entrance: Entrance,
        models: Sequence[str],
        limiter: Limiter,
        ledger: Ledger,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._entrance = entrance
        self._models = models
        self._limiter = limiter
        self._ledger = ledger
        self._wall_ns = wall_ns
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Of the main port."""
        return [Route("/v1/usage", self.page, methods=["GET"])]

    async def page(self, request: Request) -> Response:
        """Of the key that asks."""
        principal = entered(self._entrance, request, "inference")
        now_ns = self._wall_ns()
        scopes = await self._limiter.standing(principal, self._models)
        return listed(
            request,
            {
                "object": "usage",
                "tenant": principal.tenant,
                "project": principal.project,
                "key_id": principal.key_id,
                "at": _time_text(now_ns),
                "limits_checked": not self._limiter.is_away,
                "limits": [_limits_of(scope, now_ns) for scope in scopes],
                "spend": await self._spend(principal, now_ns),
            },
        )

    async def _spend(self, principal: Principal, now_ns: int) -> Json | None:
        """Of today and of this month, in UTC; None: the ledger cannot be asked now."""
        month, day, _hour = terms.windows(now_ns // NS_PER_HOUR)
        try:
            async with self._one_at_a_time:
                found = await self._ledger.spent(principal.tenant, (day, month))
        except StoreUnavailable:
            return None
        return {
            name: _spent_in(spent, principal) for name, spent in zip(("day", "month"), found, strict=True)
        }


def _spent_in(spent: dict[str, int], principal: Principal) -> Json:
    models = {scope[2:]: usd_text(pusd) for scope, pusd in sorted(spent.items()) if scope.startswith("m:")}
    return {
        "tenant_usd": usd_text(spent.get(terms.TENANT, 0)),
        "key_usd": usd_text(spent.get(f"k:{principal.key_id}", 0)),
        "tenant_usd_by_model": models,
    }


def _limits_of(scope: Scope, now_ns: int) -> Json:
    limits = scope.terms
    concurrency = None
    if limits.concurrency is not None:
        running = scope.running_everywhere
        left = max(0, limits.concurrency - running)
        concurrency = {"limit": limits.concurrency, "remaining": left}
    return {
        "of": scope_words(scope.name),
        "requests_per_minute": _rate(tightest([(scope.requests_per_minute, scope.requests_debt)])),
        "tokens_per_minute": _rate(tightest([(scope.tokens_per_minute, scope.tokens_debt)])),
        "concurrency": concurrency,
        "budgets": [_budget(scope, budget, now_ns) for budget in limits.budgets],
    }


def _rate(rate: Rate | None) -> Json | None:
    return None if rate is None else rate._asdict()


def _budget(scope: Scope, budget: BudgetTerms, now_ns: int) -> Json:
    window = terms.window(budget.per, now_ns // NS_PER_HOUR)
    spent = scope.spent_in(window)
    return {
        "usd": usd_text(budget.pusd),
        "per": budget.per,
        "hard": budget.hard,
        "spent_usd": usd_text(spent),
        "remaining_usd": usd_text(max(0, budget.pusd - spent)),
        "resets_at": _time_text(terms.end_ns(window)),
    }


def _time_text(at_ns: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ns // NS_PER_S, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
