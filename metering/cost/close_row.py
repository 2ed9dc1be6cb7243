"""A row of a closed hour: what one key used, or left unused, of one instance for one backend. Pure.

    (instance, hour)   Σ micro_hours over its rows = its paid micro-hours; Σ allocated_pusd = its cost, exactly

Only micro-hours are split; money of the list is their product with the price. What a column is, in which unit and
when it is null: deploy/reference/cost.md. null is unknown or does not apply, 0 is zero.
"""

import enum
from typing import NamedTuple

import msgspec


class RowKind(enum.StrEnum):
    """Who or what a row's micro-hours went to."""

    TENANT = "tenant"  # calls: attempts that served
    OVERHEAD = "~overhead"  # attempts that failed
    HEADROOM = "headroom"  # free slots beside calls
    IDLE = "idle"  # ready, and no call
    STARTUP = "startup"  # paid and not ready: boot, compile, warm-up, down
    STRANDED = "stranded"  # units that no backend owns
    RESERVED = "reserved"  # paid for, and no instance (only a bill knows)
    SHARED_COST = "shared_cost"  # what is no instance (configured)


class RowKey(NamedTuple):
    """What tells the rows of an hour apart; their order in a file, by bytes. null is "" here, tags are pairs."""

    instance_id: str
    backend: str
    kind: str
    tenant: str
    project: str
    model: str
    operation: str
    tags: tuple[tuple[str, str], ...]


class CloseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Amounts are integers: micro-hours (a full hour of one instance is 1,000,000), picodollars, tokens, ns.

    hour: since 1970, UTC. pool: the model that the backend serves; None of stranded, reserved and shared rows.
    tenant, project, model, operation, tags: of `tenant` rows only. shared_…: what was shared out to this row of the
    rest, beside its own. prompt_tokens include cached_prompt_tokens. estimated_pusd: by the rate cards, at the end of
    each call. calls, tokens and the estimate of a key stand once, in the hour in which its calls finished.
    """

    hour: int
    kind: RowKind
    pool: str | None = None
    backend: str | None = None
    instance_id: str | None = None
    instance_type: str | None = None
    instance_family: str | None = None
    account: str | None = None
    region: str | None = None
    az: str | None = None
    purchase_option: str | None = None
    simulated: bool = False
    tenant: str | None = None
    project: str | None = None
    model: str | None = None
    operation: str | None = None
    tags: dict[str, str] | None = None
    micro_hours: int = 0
    shared_micro_hours: int = 0
    uusd_per_hour: int | None = None
    price_source: str | None = None
    price_date: str | None = None
    list_pusd: int | None = None
    allocated_pusd: int | None = None
    shared_pusd: int | None = None
    calls: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    slot_ns: int = 0
    work_units: int = 0
    estimated_pusd: int = 0
    unpriced_calls: int = 0
    method: str

    @property
    def key(self) -> RowKey:
        """Of this row, among those of its hour."""
        return RowKey(
            self.instance_id or "",
            self.backend or "",
            self.kind.value,
            self.tenant or "",
            self.project or "",
            self.model or "",
            self.operation or "",
            tuple(sorted((self.tags or {}).items())),
        )


COLUMNS: dict[str, str] = {
    name: {"simulated": "BOOLEAN", "tags": "MAP(VARCHAR, VARCHAR)"}.get(
        name, "BIGINT" if "int" in str(kind) else "VARCHAR"
    )
    for name, kind in CloseRow.__annotations__.items()
}
"""Column → its type in SQL; the names of the fields, in their order."""
