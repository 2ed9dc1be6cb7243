"""What a key is told of its limits and its spending."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from starlette.requests import Request

from gateway.api import errors
from gateway.api.auth import Keys, hash_of, key_id
from gateway.api.usage import UsageApi
from gateway.configuration.config import Key, Tenant
from gateway.directory.attempts import Attempts
from gateway.directory.entrance import Entrance
from gateway.directory.sources import Sources
from metering.ledger.store import StoreUnavailable
from metering.limits.asks import Heard, Scope
from metering.limits.terms import BudgetTerms, Terms, era

KEY = "wb-k"
ID = key_id(hash_of(KEY))
NOON_NS = 1_795_867_200 * 10**9  # 2026-11-28T12:00:00Z
USD = 10**12


class Limits:
    """A limiter with two scopes."""

    is_away = False

    def __init__(self) -> None:
        own = Scope("t", Terms(concurrency=4, budgets=(BudgetTerms(pusd=10 * USD, per="day"),)))
        own.heard = Heard(0, [1, 0, 0])
        own.begin_era(era(NOON_NS))
        own.spent = [str(4 * USD)]
        key = Scope(f"k:{ID}", Terms(requests_per_minute=60, tokens_per_minute=1000))
        key.heard = Heard(0, [0, 2 * 60_000, 1])
        self.scopes = [own, key]

    async def standing(self, principal: Any, models: Iterable[str]) -> Sequence[Scope]:
        assert (principal.key_id, list(models)) == (ID, ["m1", "m2"])
        return self.scopes


class Ledger:
    """What was spent. away: it cannot be asked."""

    away = False

    async def spent(self, tenant: str, windows: Sequence[str]) -> Sequence[dict[str, int]]:
        assert (tenant, tuple(windows)) == ("acme", ("20261128", "202611"))
        if self.away:
            raise StoreUnavailable("gone")
        return [{}, {"t": 5 * USD, f"k:{ID}": USD, "m:m1": 2 * USD, "m:m2": 3 * USD, "p:main": 5 * USD}]


def ask(limits: Limits, ledger: Ledger, key: str = KEY, scopes: tuple[Any, ...] = ("inference",)) -> dict:
    tenants = [Tenant(name="acme", projects=("main",), keys=(Key(hash=hash_of(KEY), scopes=scopes),))]
    api = UsageApi(
        entrance=Entrance(Keys(tenants), Attempts(9), Sources(()), lambda: 0),
        models=["m1", "m2"],
        limiter=limits,
        ledger=ledger,
        wall_ns=lambda: NOON_NS,
    )
    headers = [(b"authorization", f"Bearer {key}".encode())]
    request = Request({"type": "http", "method": "GET", "path": "/v1/usage", "headers": headers})
    return json.loads(asyncio.run(api.page(request)).body)


def test_a_key_hears_of_its_limits_and_what_is_left_of_them() -> None:
    told = ask(Limits(), Ledger())
    assert (told["tenant"], told["project"], told["key_id"]) == ("acme", "main", ID)
    assert (told["at"], told["limits_checked"]) == ("2026-11-28T12:00:00Z", True)
    own, key = told["limits"]
    assert own == {
        "of": "the tenant", "requests_per_minute": None, "tokens_per_minute": None,
        "concurrency": {"limit": 4, "remaining": 3},
        "budgets": [
            {
                "usd": "10.000000000000", "per": "day", "hard": True, "spent_usd": "4.000000000000",
                "remaining_usd": "6.000000000000", "resets_at": "2026-11-29T00:00:00Z",
            }
        ],
    }  # fmt: skip
    assert key["of"] == f"the key {ID}"
    assert key["requests_per_minute"] == {"limit": 60, "remaining": 58, "reset_ms": 2000}
    assert key["tokens_per_minute"] == {"limit": 1000, "remaining": 999, "reset_ms": 1}
    assert (key["concurrency"], key["budgets"]) == (None, [])


def test_it_hears_what_was_spent_by_model() -> None:
    spend = ask(Limits(), Ledger())["spend"]
    assert spend["day"] == {
        "tenant_usd": "0.000000000000", "key_usd": "0.000000000000", "tenant_usd_by_model": {},
    }  # fmt: skip
    assert spend["month"] == {
        "tenant_usd": "5.000000000000", "key_usd": "1.000000000000",
        "tenant_usd_by_model": {"m1": "2.000000000000", "m2": "3.000000000000"},
    }  # fmt: skip


def test_what_is_not_known_is_not_told_as_nothing() -> None:
    limits, ledger = Limits(), Ledger()
    limits.is_away = ledger.away = True
    told = ask(limits, ledger)
    assert (told["limits_checked"], told["spend"]) == (False, None)
    assert len(told["limits"]) == 2


def test_it_takes_a_key_that_may_call() -> None:
    with pytest.raises(errors.UnknownKey):
        ask(Limits(), Ledger(), key="wb-other")
    with pytest.raises(errors.ScopeMissing):
        ask(Limits(), Ledger(), scopes=("operator",))
