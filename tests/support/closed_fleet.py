"""Closed hours of random fleets: rows as a close makes them, with the laws kept and all else at random."""

import random
from typing import NamedTuple

from metering.cost.allocation import split
from metering.cost.close_manifest import Manifest
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.pricing import RateCard
from tests.support import closed

TYPES = {
    "inf2.48xlarge": ("inf2", 12_981_270),
    "trn1.32xlarge": ("trn1", 21_500_001),
    "g6e.xlarge": ("g6e", 1_861_000),
}
TENANTS = ("acme", "globex", "initech")
TAGS: tuple[dict[str, str], ...] = ({}, {"cost-center": "cc-1"}, {"cost-center": "cc-1", "team": "=2+2\"'"})


class Hour(NamedTuple):
    """A closed hour, and its rows in their order."""

    manifest: Manifest
    rows: list[CloseRow]


def cards(rng: random.Random) -> dict[str, RateCard]:
    """A rate card for some of the families; some prices are finer than a picodollar a token."""
    return {
        family: RateCard(
            model="llama", hardware=family, prompt=rng.choice([294_100_000_000, rng.randrange(10**12)]),
            cached_prompt=rng.choice([0, 29_400_000_000, rng.randrange(10**11)]),
            completion=rng.choice([1_176_400_000_000, rng.randrange(10**13)]), date="2026-01-01", source="ours",
            per_request=rng.choice([0, 0, 1_000_000, rng.randrange(10**9)]),
        )
        for family, _ in TYPES.values()
        if rng.random() < 0.8
    }  # fmt: skip


def hours(
    rng: random.Random, of: dict[str, RateCard], first: int = closed.HOUR, count: int = 2
) -> list[Hour]:
    """So many hours in a row."""
    found = []
    for hour in range(first, first + count):
        rows: list[CloseRow] = []
        for number in range(rng.randrange(4)):
            rows += _instance(rng, hour, f"i-{number}", of)
        rows += _alone(rng, hour)
        rows.sort(key=lambda row: row.key)
        found.append(Hour(closed.manifest(rows, hour=hour), rows))
    return found


def _instance(rng: random.Random, hour: int, instance_id: str, of: dict[str, RateCard]) -> list[CloseRow]:
    instance_type = rng.choice(list(TYPES))
    family, price = TYPES[instance_type]
    keys: list[dict[str, object]] = [
        {"kind": RowKind.TENANT, "tenant": tenant, "project": rng.choice(["", "search"]), "model": "llama",
         "operation": "chat", "tags": rng.choice(TAGS)}
        for tenant in TENANTS if rng.random() < 0.7
    ]  # fmt: skip
    keys += [
        {"kind": kind} for kind in (RowKind.IDLE, RowKind.OVERHEAD, RowKind.HEADROOM) if rng.random() < 0.6
    ]
    keys += [{"kind": RowKind.STRANDED, "pool": None, "backend": None}]
    parts = split(
        rng.choice([1_000_000, rng.randrange(1, 1_000_001)]),
        {n: rng.randrange(1, 99) for n in range(len(keys))},
    )
    billed = rng.choice([None, rng.randrange(10**13)])
    effective = None if billed is None else split(billed, parts)
    rows = []
    for number, key in enumerate(keys):
        fields = dict(key) | {"micro_hours": parts[number], "region": "us-east-1", "account": "123456789012"}
        if key["kind"] is RowKind.TENANT:
            fields |= _usage(rng, of.get(family))
        row = closed.row(
            hour, instance_id=instance_id, instance_type=instance_type, instance_family=family, uusd_per_hour=price,
            **fields,
        )  # fmt: skip
        if effective is not None:
            row = closed.row(
                **{name: getattr(row, name) for name in row.__struct_fields__}
                | {"allocated_pusd": effective[number]}
            )
        rows.append(row)
    return rows


def _usage(rng: random.Random, card: RateCard | None) -> dict[str, int]:
    """Amounts of some calls; each call's cost is rounded by itself, as a gateway does."""
    calls = rng.randrange(5)
    prompt = cached = completion = estimated = 0
    for _ in range(calls):
        tokens = rng.randrange(1, 9_000)
        hit = rng.choice([0, tokens, rng.randrange(tokens + 1)])
        made = rng.randrange(900)
        prompt, cached, completion = prompt + tokens, cached + hit, completion + made
        if card is not None and rng.random() < 0.95:
            exact = (tokens - hit) * card.prompt + hit * card.cached_prompt + made * card.completion
            estimated += (2 * exact + 1_000_000) // 2_000_000 + card.per_request
        else:
            estimated += rng.randrange(10**9)
    return {
        "calls": calls, "prompt_tokens": prompt, "cached_prompt_tokens": cached, "completion_tokens": completion,
        "estimated_pusd": estimated, "slot_ns": rng.randrange(10**13), "work_units": rng.randrange(10**9),
    }  # fmt: skip


def _alone(rng: random.Random, hour: int) -> list[CloseRow]:
    """Rows of no instance: calls that none served, commitments that nothing used, shared costs."""
    nowhere = {
        "instance_id": None, "instance_type": None, "instance_family": None, "uusd_per_hour": None, "pool": None,
    }  # fmt: skip
    rows = []
    if rng.random() < 0.5:
        rows.append(
            closed.row(hour, kind=RowKind.TENANT, tenant="acme", model="llama", operation="chat", list_pusd=0,
                       allocated_pusd=0, **nowhere | {"pool": "llama"}, **_usage(rng, None))
        )  # fmt: skip
    if rng.random() < 0.5:
        cost, tenants = rng.randrange(10**12), rng.choice([(None,), ("acme", "globex")])
        for number, part in split(cost, {n: rng.randrange(1, 9) for n in range(len(tenants))}).items():
            rows.append(
                closed.row(hour, kind=RowKind.SHARED_COST, **nowhere | {"backend": "redis"}, tenant=tenants[number],
                           list_pusd=part, allocated_pusd=part, shared_pusd=0, method="even")
            )  # fmt: skip
    if rng.random() < 0.5:
        rows.append(
            closed.row(hour, kind=RowKind.RESERVED, **nowhere | {"backend": "sp-1", "instance_type": "inf2.xlarge"},
                       region="us-east-1", purchase_option="savings-plan", list_pusd=0,
                       allocated_pusd=rng.randrange(10**12))
        )  # fmt: skip
    return rows
