"""What can be wrong with tenants, keys and limits: each mistake at its path, in words that say what would be right."""

import msgspec
import pytest

from gateway.configuration.config import Budget, Key, LimitSet, Tenant
from gateway.configuration.tenants_check import check_tenants

HASH = "sha256:" + "0" * 63 + "1"
OTHER_HASH = "sha256:" + "1" * 64
GOOD = Tenant(
    name="acme",
    projects=("chat", "batch"),
    limits=LimitSet(
        requests_per_minute=60,
        budgets=(
            Budget(usd="10", per="day"),
            Budget(usd="8", per="day", hard=False),
            Budget(usd="4000000", per="month"),
        ),
    ),
    model_limits={"llama": LimitSet(concurrency=3)},
    project_limits={"batch": LimitSet(tokens_per_minute=1_000)},
    keys=(
        Key(
            hash=HASH,
            name="nightly",
            project="batch",
            models=("llama",),
            endpoints=("chat", "embeddings"),
            networks=("10.0.0.0/8", "2001:db8::/32", "192.0.2.1"),
            expires="2027-01-01T00:00:00+01:00",
        ),
        Key(hash=OTHER_HASH),
    ),
)


def mistakes(tenant: Tenant) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    check_tenants([tenant], ["llama", "gpt-oss"], lambda path, message: found.append((path, message)))
    return found


def with_key(**changes: object) -> Tenant:
    return msgspec.structs.replace(
        GOOD, keys=(msgspec.structs.replace(GOOD.keys[0], **changes), GOOD.keys[1])
    )


def with_budget(budget: Budget) -> Tenant:
    return msgspec.structs.replace(GOOD, limits=LimitSet(budgets=(budget,)))


def test_a_good_one_is_good() -> None:
    assert mistakes(GOOD) == []


@pytest.mark.parametrize(
    ("tenant", "path", "message"),
    [
        (
            with_key(project="chta"),
            "tenants[0].keys[0].project",
            "there is no project chta; did you mean chat?",
        ),
        (
            with_key(models=("lama",)),
            "tenants[0].keys[0].models[0]",
            "there is no model lama; did you mean llama?",
        ),
        (with_key(models=("llama", "llama")), "tenants[0].keys[0].models[1]", "is the same as"),
        (
            with_key(endpoints=("chats",)),
            "tenants[0].keys[0].endpoints[0]",
            "there is no endpoint chats; did you",
        ),
        (
            with_key(networks=("10.0.0.1/8",)),
            "tenants[0].keys[0].networks[0]",
            "has host bits set; write a network",
        ),
        (with_key(networks=("example.com",)), "tenants[0].keys[0].networks[0]", 'as in "10.0.0.0/8"'),
        (with_key(expires="tomorrow"), "tenants[0].keys[0].expires", "'tomorrow' is no time"),
        (with_key(hash=OTHER_HASH), "tenants[0].keys[1].hash", "is the same key as tenants[0].keys[0]"),
        (
            with_key(limits=LimitSet(budgets=(Budget(usd="x", per="day"),))),
            "tenants[0].keys[0].limits.budgets[0].usd",
            "'x' is no amount in USD",
        ),
        (with_budget(Budget(usd="0.00", per="day")), "tenants[0].limits.budgets[0].usd", "must be above 0"),
        (
            with_budget(Budget(usd="4000000.01", per="day")),
            "tenants[0].limits.budgets[0].usd",
            "must be at most 4000000 USD",
        ),
        (
            with_budget(Budget(usd="1", per="day", thresholds=(80, 80))),
            "tenants[0].limits.budgets[0].thresholds[1]",
            "is the same as",
        ),
        (
            with_budget(Budget(usd="1", per="day", thresholds=tuple(range(1, 10)))),
            "tenants[0].limits.budgets[0].thresholds",
            "at most 8 items",
        ),
        (
            msgspec.structs.replace(GOOD, limits=LimitSet(budgets=(Budget(usd="1", per="day"),) * 9)),
            "tenants[0].limits.budgets",
            "at most 8 items",
        ),
        (
            msgspec.structs.replace(GOOD, limits=LimitSet(budgets=(Budget(usd="1", per="day"),) * 2)),
            "tenants[0].limits.budgets[1]",
            "is the same as",
        ),
        (
            msgspec.structs.replace(GOOD, model_limits={"gpt": LimitSet()}),
            "tenants[0].model_limits.gpt",
            "there is no model gpt",
        ),
        (
            msgspec.structs.replace(GOOD, project_limits={"web": LimitSet()}),
            "tenants[0].project_limits.web",
            "there is no project web",
        ),
    ],
)
def test_each_mistake_has_its_place(tenant: Tenant, path: str, message: str) -> None:
    (found, *_) = mistakes(tenant)
    assert found[0] == path
    assert message in found[1]
