"""The configuration: its types, and how a file, the environment and flags become one.

Precedence: flag > environment > file > default. What spans fields is in gateway/config_check.py;
every key with its meaning: deploy/reference/config.md.
"""

from typing import Annotated, Literal

import msgspec

from backends.model import NAME_PATTERN, Backend, Section

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
KeyHash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Scope = Literal["inference", "operator", "finance", "auditor"]
MIB = 1024 * 1024


class Redis(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the ledger is. Neither key: an embedded store under state_dir. url_file: a file with the URL."""

    url: str | None = None
    url_file: str | None = None


class Ops(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second listener for metrics and readiness; None: they are on the main port only."""

    listen: str | None = None


class Journal(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fsync: `interval`: each fsync_interval_ms; `os`: when the system likes. bytes_max: of all writers."""

    fsync: Literal["interval", "os"] = "interval"
    fsync_interval_ms: Count = 50
    segment_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = 8192 * MIB


class Timeouts(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deadlines of a call, in seconds; the first to pass ends the attempt, total_s the call."""

    connect_s: Seconds = 2.0
    first_event_s: Seconds = 60.0  # prefill of a long prompt is slow
    between_events_s: Seconds = 10.0  # decode is not
    total_s: Seconds = 600.0


class Key(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key, by its SHA-256; `weighbridge key new` makes one."""

    hash: KeyHash
    scopes: tuple[Scope, ...] = ("inference",)


class Tenant(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is billed. projects: the first one is the project of its calls. tags: copied into each record."""

    name: Name
    projects: tuple[Name, ...] = ()
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    keys: tuple[Key, ...] = ()


class Tier(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends that are tried before the next tier's. patience_s: longest wait for a slot before going on."""

    backends: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    patience_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5


class CardEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token prices of a model on a family or on one instance type: decimal strings, USD per 1M tokens.

    cached_prompt None: cached tokens cost what others do.
    """

    family: str | None = None
    instance_type: str | None = None
    prompt: str
    cached_prompt: str | None = None
    completion: str
    date: str
    source: str


class Model(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as clients know it: its id, other names, where it is served; the last four are for auditors."""

    name: Name
    aliases: tuple[str, ...] = ()
    tiers: Annotated[tuple[Tier, ...], msgspec.Meta(min_length=1)]
    rate_cards: tuple[CardEntry, ...] = ()
    owner: str | None = None
    logging_policy: str | None = None
    storage_location: str | None = None
    vendor: str | None = None


class PriceEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's price of an instance type, in USD per hour as a decimal string; before the list's."""

    instance_type: str
    usd_per_hour: str
    date: str
    source: str
    region: str | None = None


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it, resolved: what the workers get."""

    listen: str = "127.0.0.1:8080"
    workers: Count = 1
    state_dir: str = ".weighbridge"
    redis: Redis = Redis()
    ops: Ops = Ops()
    journal: Journal = Journal()
    timeouts: Timeouts = Timeouts()
    attempts_max: Count = 3
    tenants: Annotated[tuple[Tenant, ...], msgspec.Meta(min_length=1)]
    models: Annotated[tuple[Model, ...], msgspec.Meta(min_length=1)]
    backends: Annotated[tuple[Backend, ...], msgspec.Meta(min_length=1)]
    prices: tuple[PriceEntry, ...] = ()
