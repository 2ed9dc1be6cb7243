"""The configuration: its types, and its canonical form. Pure.

Reading it: config_load.py; what spans fields: config_check.py; every key with its
meaning: deploy/reference/config.md.
"""

import hashlib
from typing import Annotated, Literal

import msgspec

from backends.model import Backend, Count, Hardware, Name, Path, Section, Text
from backends.sse import EVENT_BYTES_MAX
from metering.cost.price_book import ON_DEMAND, PurchaseOption
from metering.cost.work_units import DEFAULT_CACHED_PROMPT, DEFAULT_COMPLETION, DEFAULT_PROMPT

SECONDS_MAX = 7 * 86_400
Seconds = Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)]
WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=3_600)]
KEY_HASH_PATTERN = r"^sha256:[0-9a-f]{64}\Z"
KeyHash = Annotated[str, msgspec.Meta(pattern=KEY_HASH_PATTERN)]
PUBLIC_KEY_PATTERN = r"^x25519:[A-Za-z0-9+/]{43}=\Z"
PublicKey = Annotated[str, msgspec.Meta(pattern=PUBLIC_KEY_PATTERN)]
Scope = Literal["inference", "operator", "finance", "auditor"]
LISTEN_DEFAULT = "127.0.0.1:8080"
KIB = 1024
MIB = 1024 * KIB
Bytes = Annotated[int, msgspec.Meta(ge=MIB, le=2**50)]
BufferBytes = Annotated[int, msgspec.Meta(ge=KIB, le=1024 * MIB)]  # held in memory
PORT_MAX = 65_535
Weight = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
WORK_UNITS_PER_HOUR_MAX = 10**15
CountPerMinute = Annotated[int, msgspec.Meta(ge=1, le=10**10)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=1_000)]


class Redis(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the ledger is. Neither URL: an embedded store under state_dir. url_file: a file with the URL.

    ca_file: who signs the store's certificate, in PEM; with a rediss URL.
    """

    url: Path | None = None
    url_file: Path | None = None
    ca_file: Path | None = None


class Ops(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second listener for metrics and readiness; None: they are on the main port only."""

    listen: Text | None = None


class ArchiveLock(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Object lock of what is put into the archive's bucket, for so many days from then on.

    what: the anchors alone, or all that an auditor relies on.
    """

    mode: Literal["governance", "compliance"]
    days: Annotated[int, msgspec.Meta(ge=1, le=36_500)]
    what: Literal["anchors", "all"] = "anchors"


class Journal(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fsync: `always`: before anybody is answered; `interval`: each fsync_interval_ms; `os`: when the system likes.
    on_error: a journal that fails ends its worker, or calls go on and what is not written is shown. mirror: where each
    line is copied to. bytes_max: of all writers. archive: a path, file:///path or s3://bucket/prefix;
    archive_endpoint, archive_region: of its storage; archive_lock: what is locked there. signing_key_file: the private
    key of checkpoints; None: one is made under state_dir.
    """

    fsync: Literal["always", "interval", "os"] = "interval"
    on_error: Literal["stop", "continue"] = "stop"
    mirror: Literal["stdout"] | None = None
    fsync_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 50
    segment_bytes_max: Bytes = 64 * MIB
    bytes_max: Bytes = 8192 * MIB
    archive: Path | None = None
    archive_endpoint: Text | None = None
    archive_region: Text | None = None
    archive_lock: ArchiveLock | None = None
    signing_key_file: Path | None = None


class Allocation(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hours are closed (metering/cost/allocation.py). late_minutes: for how long an hour waits for journals."""

    method: Literal["slot-time", "capacity", "busy-time"] = "slot-time"
    sharing: Literal["none", "weighted", "even"] = "none"
    late_minutes: Annotated[int, msgspec.Meta(ge=0, le=1_440)] = 15


class Timeouts(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deadlines of a call, in seconds; the first to pass ends the attempt, total_s the call."""

    connect_s: Seconds = 2.0
    first_event_s: Seconds = 60.0  # prefill of a long prompt is slow
    sized_answer_s: Seconds = 300.0  # half of the whole, so that another backend has as long
    between_events_s: Seconds = 10.0  # decode is not
    total_s: Seconds = 600.0


class Bounds(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one worker takes of others, at most. Past its bound a connection is cut or a request refused, and counted.

    *_bytes_max of a client's request: `head`, `body`; of a backend's answer: `backend_head`, `event` (one of a
    stream), `answer` (one that is not streamed). `buffer`: what may wait for a slow client before its backend is
    no longer read.
    """

    connections_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    idle_s: Seconds = 75.0  # above the 60 s of the usual load balancers, so that they close first
    head_s: Seconds = 20.0
    head_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=MIB)] = 64 * KIB
    body_s: Seconds = 30.0
    body_bytes_per_s_min: Annotated[int, msgspec.Meta(ge=1, le=1024 * MIB)] = 4 * KIB
    body_bytes_max: BufferBytes = 32 * MIB  # images travel in bodies as base64
    linger_s: Seconds = 5.0
    linger_bytes_max: BufferBytes = 256 * MIB
    write_stall_s: Seconds = 60.0
    buffer_bytes_max: BufferBytes = 256 * KIB
    backend_idle_s: Seconds = 4.0  # vLLM closes after 5
    backend_idle_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1024
    backend_head_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=MIB)] = 64 * KIB
    event_bytes_max: BufferBytes = EVENT_BYTES_MAX
    answer_bytes_max: BufferBytes = 64 * MIB
    queue_calls_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 100
    queue_wait_s: Seconds = 10.0
    loop_lag_ms_max: Annotated[int, msgspec.Meta(ge=10, le=60_000)] = 500


class Cors(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pages of which origins may call from a browser. None named: no page of another origin; "*": of any."""

    origins: tuple[Text, ...] = ()
    max_age_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 600


class Peer(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another gateway, asked for calls that it has recorded. key_file: holds a key of its with the scope `auditor`.

    ca_file: of an https url alone; None: the system's trust.
    """

    url: Path
    key_file: Path
    ca_file: Path | None = None


class Audit(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audit face. peers: the other gateways."""

    peers: tuple[Peer, ...] = ()


class Budget(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be spent in each hour, day or month of UTC: a decimal string in USD.

    hard: calls past it are refused; else they are only told of. thresholds: in percent of it; passing one is told once
    a window.
    """

    usd: Text
    per: Literal["hour", "day", "month"]
    hard: bool = True
    thresholds: tuple[Percent, ...] = (80, 100)


class LimitSet(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one scope; None: no such limit. concurrency: calls under way at once."""

    requests_per_minute: CountPerMinute | None = None
    tokens_per_minute: CountPerMinute | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    budgets: tuple[Budget, ...] = ()


class Key(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key, by its SHA-256; `weighbridge key new` makes one.

    project: of its calls; None: the tenant's first. models, endpoints (names of operations), networks (CIDR): what it
    may be used for and from where; None: anything. expires: an RFC 3339 time or a date; None: never.
    """

    hash: KeyHash
    name: Name | None = None
    scopes: tuple[Scope, ...] = ("inference",)
    project: Name | None = None
    limits: LimitSet = LimitSet()
    models: tuple[Name, ...] | None = None
    endpoints: tuple[Text, ...] | None = None
    networks: tuple[Text, ...] | None = None
    expires: Text | None = None
    disabled: bool = False


class Capture(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's content is kept, encrypted to this key. bytes_max: of a prompt, and of an answer.

    required: calls are refused while it can't be kept. retention_days: at most as long as the journal's.
    """

    public_key: PublicKey
    required: bool = False
    bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=16 * MIB)] = MIB
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 30


class Tenant(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is billed. projects: the first one is the project of its calls. tags: copied into each record.

    digests: records have keyed digests of prompt and answer. model_limits, project_limits: of its calls of one model,
    of one project, by name. hold: what a call reserves of a budget until its cost is known. store_policy: what becomes
    of limits while the store is away. lost: what a call costs whose end nobody saw. share, priority: its place in the
    line when all servers are full. capture: their content is kept; None: it never is.
    """

    name: Name
    projects: tuple[Name, ...] = ()
    tags: Annotated[dict[Name, Text], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    digests: bool = False
    limits: LimitSet = LimitSet()
    model_limits: Annotated[dict[Name, LimitSet], msgspec.Meta(max_length=256)] = msgspec.field(
        default_factory=dict
    )
    project_limits: Annotated[dict[Name, LimitSet], msgspec.Meta(max_length=256)] = msgspec.field(
        default_factory=dict
    )
    hold: Literal["expected", "worst"] = "expected"
    store_policy: Literal["open", "closed", "share"] = "open"
    lost: Literal["free", "estimated"] = "free"
    share: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    capture: Capture | None = None


class Tier(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backends that are tried before the next tier's. patience_s: longest wait for a slot before going on."""

    backends: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    patience_s: Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)] = 0.5


class CardEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a model on a family or on one instance type: decimal strings, USD per 1M tokens.

    cached_prompt None: cached tokens cost what others do. other: USD per 1M of another kind that calls count, by its
    name; per_request: USD per call. date: since when, until the next card of the same hardware.
    """

    family: Hardware | None = None
    instance_type: Hardware | None = None
    prompt: Text
    cached_prompt: Text | None = None
    completion: Text
    other: Annotated[dict[Name, Text], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=dict)
    per_request: Text = "0"
    date: Text
    source: Text


class WorkUnitsEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work units for a token of a model on a family or on one instance type.

    per_hour: what a whole instance makes in an hour at full load; None: not calibrated. date: since when, until the
    next ones of the same hardware.
    """

    family: Hardware | None = None
    instance_type: Hardware | None = None
    prompt: Weight = DEFAULT_PROMPT
    cached_prompt: Weight = DEFAULT_CACHED_PROMPT
    completion: Weight = DEFAULT_COMPLETION
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=WORK_UNITS_PER_HOUR_MAX)] | None = None
    date: Text
    source: Text


class Model(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as clients know it: its id, other names, where it is served; the last four are for auditors."""

    name: Name
    aliases: tuple[Text, ...] = ()
    tiers: Annotated[tuple[Tier, ...], msgspec.Meta(min_length=1)]
    rate_cards: tuple[CardEntry, ...] = ()
    work_units: tuple[WorkUnitsEntry, ...] = ()
    owner: Text | None = None
    logging_policy: Text | None = None
    storage_location: Path | None = None
    vendor: Text | None = None


class PriceEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's price of an instance type, in USD per hour as a decimal string; before the lists'.

    date: since when it holds, until the next one of the same type, region and purchase option.
    """

    instance_type: Hardware
    usd_per_hour: Text
    date: Text
    source: Text
    region: Text | None = None
    purchase_option: PurchaseOption = ON_DEMAND


class InstanceTypeEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance type that the shipped table does not have. cores: NeuronCores of all its accelerators; None: a GPU
    type, whose accelerators are counted."""

    name: Hardware
    family: Hardware
    accelerator: Text
    accelerator_count: Count
    cores: Count | None = None


class Exports(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who bills, in FOCUS files. account: the billing account's id; issuer: its name, and of who serves the models."""

    account: Text = "weighbridge"
    issuer: Text = "Weighbridge"


class SharedCostEntry(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost that is no instance, in USD as a decimal string: either by month or by hour.

    since, until: half-open, a date or an RFC 3339 time on a full hour; None: always. split: over whom.
    """

    name: Name
    usd_per_month: Text | None = None
    usd_per_hour: Text | None = None
    since: Text | None = None
    until: Text | None = None
    split: Literal["none", "even", "allocated"] = "none"


class Auth(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signing in. stale_max_s: how long keys of the directory are believed with the store away.

    failures_per_minute: attempts with a key that is not known, of one source address; then they get 429.
    """

    stale_max_s: Annotated[int, msgspec.Meta(ge=1, le=SECONDS_MAX)] = 14_400
    failures_per_minute: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 60


class BudgetRules(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """unpriced: what a hard budget does with a call that can't be priced beforehand."""

    unpriced: Literal["refuse", "allow"] = "refuse"


class Server(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """trusted_proxies: networks (CIDR) whose X-Forwarded-For is believed."""

    trusted_proxies: tuple[Text, ...] = ()


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it, resolved: what the workers get. profile: what the configuration is held to.

    chargeback: what tenants are charged: the estimate by rate cards, or what the close allocates to them.
    """

    listen: Text = LISTEN_DEFAULT
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    state_dir: Path = ".weighbridge"
    redis: Redis = Redis()
    ops: Ops = Ops()
    journal: Journal = Journal()
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 400
    profile: Literal["eu-high-risk"] | None = None
    chargeback: Literal["rate-card", "allocated"] = "rate-card"
    allocation: Allocation = Allocation()
    timeouts: Timeouts = Timeouts()
    attempts_max: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3  # each stands in the record
    driver: Literal["direct", "plain"] = "direct"
    keepalive_s: WaitSeconds = 15.0
    drain_s: WaitSeconds = 20.0
    bounds: Bounds = Bounds()
    cors: Cors = Cors()
    audit: Audit = Audit()
    auth: Auth = Auth()
    budget: BudgetRules = BudgetRules()
    server: Server = Server()
    tenants: tuple[Tenant, ...] = ()
    models: Annotated[tuple[Model, ...], msgspec.Meta(min_length=1)]
    backends: Annotated[tuple[Backend, ...], msgspec.Meta(min_length=1)]
    prices: tuple[PriceEntry, ...] = ()
    instance_types: tuple[InstanceTypeEntry, ...] = ()
    shared_costs: tuple[SharedCostEntry, ...] = ()
    exports: Exports = Exports()


def with_digests(config: Config) -> list[str]:
    """Names of the tenants whose records have digests."""
    return [tenant.name for tenant in config.tenants if tenant.digests]


def to_json(config: Config) -> bytes:
    """The canonical form: sorted keys, no spaces. What a worker is started with."""
    return msgspec.json.encode(config, order="sorted")


def from_json(data: bytes) -> Config:
    """The reverse of `to_json`. Raises msgspec.MsgspecError on anything else."""
    return msgspec.json.decode(data, type=Config)


def without_store(config: Config) -> Config:
    """What bears on records: where the ledger is kept does not, and its URL may hold a password."""
    return msgspec.structs.replace(config, redis=Redis())


def digest(config: Config) -> str:
    """ "sha256:…" of the canonical form without the store: what the journal says of the configuration."""
    return digest_of(to_json(without_store(config)))


def digest_of(canonical: bytes) -> str:
    """The same of a canonical form as it was kept."""
    return "sha256:" + hashlib.sha256(canonical).hexdigest()


def host_and_port(listen: str) -> tuple[str, int]:
    """Read "host:port"; an IPv6 host stands in brackets. Raises ValueError with the reason.

    An empty host is every address; port 0 lets the system choose.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > PORT_MAX:
        raise ValueError(f'{listen!r} must be "host:port", as in "127.0.0.1:8080"')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f'{listen!r}: an IPv6 address stands in brackets, as in "[::1]:8080"')
    return host.removeprefix("[").removesuffix("]"), int(port)
