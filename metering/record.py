"""The lines of the journal as types; the fact of a call is one of them. Pure.

Every struct that is written declares its fields in sorted order, so the JSON has
sorted keys; no floats. None is unknown, 0 is zero; never one for the other.
`kind`, `prev`, `seq` and `v` stand in every line (format: deploy/reference/journal.md).
Times ending in _ns that are points are wall-clock nanoseconds since 1970 (UTC), made from one
wall reading at the call's start plus a monotonic clock, so their differences never go back.
"""

import enum
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import msgspec

from metering.usage import UNKNOWN, Usage

T = TypeVar("T", bound=msgspec.Struct)

VERSION = 1
"""Of the kinds whose fields have not changed since the first release; of others `v` has the newer one."""
RECORD_BYTES_MAX = 16 * 1024
"""A record is at most this long; a long plan is cut, with a count (`Plan.cut`)."""


class Outcome(enum.StrEnum):
    """How an admitted call ended; exactly one each."""

    COMPLETED = "completed"  # the answer ended well and the client was there when it was sealed
    CLIENT_GONE = "client_gone"
    BACKEND_FAILED = "backend_failed"
    TIMED_OUT = "timed_out"
    SHED = "shed"  # admitted, but no slot came free in time
    REFUSED = "refused"  # a backend answered 4xx: the request itself is at fault
    LOST = "lost"  # the process died before the end; written by the salvage


class AttemptOutcome(enum.StrEnum):
    """How one attempt at one backend ended."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    UNAVAILABLE = "unavailable"  # no work started: connect failed, 429, 503
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A share of one instance: `units` of its `units_total` cores (Neuron) or accelerators (GPU)."""

    id: str | None = None
    type: str | None = None
    units: int | None = None
    units_total: int | None = None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that could not serve this call, and why."""

    backend: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Backends able to serve the call, best first; those left out, with the reason.

    cut: how many entries were dropped to keep the record within RECORD_BYTES_MAX.
    """

    able: tuple[str, ...] = ()
    cut: int = 0
    left_out: tuple[LeftOut, ...] = ()


class Params(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The request's parameters that bear on cost; None: not given."""

    max_tokens: int | None = None
    n: int | None = None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One try at one backend.

    slot_ns: time it held a slot: from connect to the backend's last byte or abort.
    reconnected: a reused connection died with no byte of an answer, and a fresh one was taken.
    """

    backend: str
    ended_ns: int
    error: str | None = None
    first_event_ns: int | None = None
    instance_family: str | None = None
    outcome: AttemptOutcome
    reconnected: bool = False
    slot_ns: int
    started_ns: int
    status: int | None = None
    usage: Usage = UNKNOWN


class PriceBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What a cost was computed from. Token prices in picodollars per 1M tokens;
    `instance_price_uusd_per_hour` in micro-dollars per hour, for `derived`.

    other_pusd_per_munit: of kinds beside tokens, picodollars per 1M of each; per_request_pusd: of each call. A card
    without such prices has neither, so that most records are no longer for it (from version 2 of `call` on).
    """

    cached_prompt_pusd_per_mtok: int | None = None
    completion_pusd_per_mtok: int | None = None
    date: str | None = None
    instance_price_uusd_per_hour: int | None = None
    kind: Literal["card", "derived"]
    other_pusd_per_munit: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    per_request_pusd: int | msgspec.UnsetType = msgspec.UNSET
    prompt_pusd_per_mtok: int | None = None
    source: str | None = None


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call's content is kept, encrypted (metering/capture/frame.py), or why it is not.

    file, offset, bytes, sha256: of the frame: in which file, from where on, how long, its digest in hex. All are None
    of one that was not kept. key: the id of the tenant's public key. prompt_bytes, answer_bytes: so many of each are
    in it: less than there were, if it was cut. dropped: why nothing is kept; None: it is.
    """

    answer_bytes: int = 0
    bytes: int | None = None
    dropped: str | None = None
    file: str | None = None
    key: str
    offset: int | None = None
    prompt_bytes: int = 0
    sha256: str | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A journal that has ended: so many lines, with this root (base64, as in its end.note)."""

    root: str
    size: int
    writer: str


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a directory. config_digest: "sha256:…" of the resolved configuration.

    command: whose events these are, as in `export`; its config_digest is empty and its worker 0. None: a worker.
    ended: the journals of this state directory that have ended, the newest ones: one that is dropped is missed.
    """

    at_ns: int
    command: str | None = None
    config_digest: str
    ended: tuple[Ended, ...] = ()
    kind: Literal["start"] = "start"
    pid: int
    prev: str
    seq: int
    v: int = VERSION
    version: str  # of Weighbridge
    worker: int  # index, from 0
    writer: str


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the hardware and software that a backend runs on."""

    accelerator: str | None = None
    account: str | None = None
    artifact_digest: str | None = None
    az: str | None = None
    backend: str
    compiler_version: str | None = None
    cores: int | None = None
    data_parallel: int | None = None
    driver_version: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    identity_source: Literal["agent", "config", "unknown"]
    image_digest: str | None = None
    instance_family: str | None = None
    instances: tuple[Instance, ...] = ()
    launch_digest: str | None = None
    logging_policy: str | None = None
    max_model_len: int | None = None
    model: str
    model_revision: str | None = None
    neuron_version: str | None = None
    owner: str | None = None
    pipeline_parallel: int | None = None
    plugin_version: str | None = None
    precision: str | None = None
    purchase_option: str | None = None
    region: str | None = None
    runtime_version: str | None = None
    served_model: str
    simulated: bool = False
    slots: int | None = None
    storage_location: str | None = None
    tensor_parallel: int | None = None
    vendor: str | None = None
    weights_digest: str | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Host facts of a backend, once per change. digest: "sha256:…" of `host` as canonical JSON."""

    at_ns: int
    digest: str
    host: Host
    kind: Literal["identity"] = "identity"
    prev: str
    seq: int
    v: int = VERSION


class Expected(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a call was expected to take when it was admitted, priced as the backend that it would try first charges.

    Its counts are estimates: gateway/admission/expectation.py. Either a cost with its basis, or why there is none.
    """

    cost_pusd: int | None
    price_basis: PriceBasis | None
    rate_card: str | None
    unpriced_reason: str | None
    usage: Usage

    def __post_init__(self) -> None:
        assert (self.cost_pusd is None) == (self.price_basis is None)
        assert (self.cost_pusd is None) == (self.unpriced_reason is not None)


class Admitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call was admitted. It carries all that a `lost` record will need.

    expected: of a tenant whose lost calls are billed (from version 2 on); all other lines are no longer for it, and
    say version 1.
    """

    admitted_ns: int
    at_ns: int
    body_bytes: int
    call_id: str
    expected: Expected | msgspec.UnsetType = msgspec.UNSET
    key_id: str
    kind: Literal["admitted"] = "admitted"
    model: str
    model_requested: str
    operation: str
    params: Params
    prev: str
    project: str | None
    received_ns: int
    request_id: str
    seq: int
    stream: bool
    tags: dict[str, str]
    tenant: str
    trace_id: str | None
    v: int = 2


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fact of a call: one for each `admitted` line.

    received_ns: the body was complete; dispatched_ns: handed to the first backend;
    backend_ended_ns: last byte of the serving attempt, or its abort; finished_ns: sealed.
    ttft_ns: received → first content, reasoning or tool delta (streams only).
    tpot_ns: (last − first token) ÷ (completion tokens − 1), rounded half up.
    slot_ns, slots: of the serving attempt: time in a slot; the backend's slots.
    capture: of a tenant whose content is kept (from version 2 on); all other records are no longer for it.
    """

    adapter: str | None = None
    admitted_ns: int
    at_ns: int
    attempts: tuple[AttemptRecord, ...] = ()
    backend: str | None = None
    backend_ended_ns: int | None = None
    body_bytes: int
    call_id: str
    capture: Capture | msgspec.UnsetType = msgspec.UNSET
    client_labels: dict[str, str] | None = None
    cost_pusd: int | None = None
    digests: dict[str, str] | None = None
    dispatched_ns: int | None = None
    end_user: str | None = None
    error_code: str | None = None
    fallback_reason: str | None = None
    finish_reasons: tuple[str, ...] | None = None
    finished_ns: int
    first_token_ns: int | None = None
    identity_digest: str | None = None
    identity_source: Literal["agent", "config", "unknown"] = "unknown"
    instance_family: str | None = None
    instances: tuple[Instance, ...] = ()
    key_id: str
    kind: Literal["call"] = "call"
    last_token_ns: int | None = None
    mended: tuple[str, ...] = ()
    model: str
    model_requested: str
    neuron_version: str | None = None
    operation: str
    outcome: Outcome
    params: Params
    params_ignored: tuple[str, ...] = ()
    plan: Plan | None = None
    prev: str
    price_basis: PriceBasis | None = None
    project: str | None
    queue_wait_ns: int | None = None
    rate_card: str | None = None
    received_ns: int
    request_id: str
    response_bytes: int | None = None
    seq: int
    simulated: bool | None = None
    slot_ns: int | None = None
    slots: int | None = None
    spill_reason: str | None = None
    status: int | None = None
    stream: bool
    tags: dict[str, str]
    tenant: str
    tier: int | None = None
    tpot_ns: int | None = None
    trace_id: str | None = None
    ttft_ns: int | None = None
    unpriced_reason: str | None = None
    usage: Usage = UNKNOWN
    v: int = 2
    warm_state: Literal["cold", "warm"] | None = None


class BilledUsage(msgspec.Struct, frozen=True, gc=False):
    """The counts of a `Usage` that the ledger keeps."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Billed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the ledger needs of a line: its link, and of a `CallRecord` what it moves. Read, never written.

    tenant, model, finished_ns, admitted_ns, key_id: None of lines of other kinds.
    """

    admitted_ns: int | None = None
    at_ns: int
    cost_pusd: int | None = None
    finished_ns: int | None = None
    instance_family: str | None = None
    key_id: str | None = None
    kind: str
    model: str | None = None
    prev: str
    project: str | None = None
    seq: int
    tenant: str | None = None
    usage: BilledUsage = BilledUsage()
    v: int


class MeteredAttempt(msgspec.Struct, frozen=True, gc=False):
    """What an `AttemptRecord` says of tokens."""

    backend: str
    usage: BilledUsage = BilledUsage()


class Metered(Billed, frozen=True, kw_only=True, gc=False):
    """What all counts of a line together need of it: of a `Refused` the count, of a `CallRecord` its attempts too."""

    attempts: tuple[MeteredAttempt, ...] = ()
    count: int = 1


def in_order(kind: type[T]) -> Callable[..., T]:
    """A maker of structs of this kind that takes all their fields, without names, in their order.

    A name is searched for among those of the kind: with 56 fields that costs more than to write them out.
    """
    fields = [(field.name, field.type) for field in msgspec.structs.fields(kind)]
    made = msgspec.defstruct(kind.__name__, fields, bases=(kind,), module=kind.__module__, frozen=True)
    return cast(Callable[..., T], made)


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A request that ended before admission; None: not known by then (a 401 has no tenant).

    count: so many requests, of the same tenant, reason, operation, status, error_code and limit; above 1 the line is
    of one second (metering/journal/refusals.py), and `model` and `key_id` are theirs only if all had the same. limit:
    the tenant's limit that had no room, in words.
    """

    at_ns: int
    count: int = 1  # from version 2 on
    error_code: str | None
    key_id: str | None
    kind: Literal["refused"] = "refused"
    limit: str | None = None  # from version 3 on
    model: str | None
    operation: str
    prev: str
    reason: str
    request_id: str
    seq: int
    status: int
    tenant: str | None
    v: int = 3


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Each 60 s and each full hour: how many calls are open, and the oldest one's admission."""

    at_ns: int
    kind: Literal["tick"] = "tick"
    oldest_admitted_ns: int | None
    open_calls: int
    prev: str
    seq: int
    v: int = VERSION


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Size and root of the tree of all lines before this one, signed. note: metering/audit/checkpoint.py."""

    at_ns: int
    kind: Literal["checkpoint"] = "checkpoint"
    note: str
    prev: str
    seq: int
    v: int = VERSION


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something besides a call that an auditor asks after: a change, an export, a look at the journal.

    actor: the key id, or `cli:<user>` of a command; None: nobody, the gateway itself.
    topic: what kind of thing, and so which names `data` has (deploy/reference/journal.md).
    """

    actor: str | None
    at_ns: int
    data: dict[str, str]
    kind: Literal["event"] = "event"
    prev: str
    seq: int
    topic: str
    v: int = VERSION


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What the directory says of one tenant or one key, as of a version.

    name: of a tenant, its name; of a key, its id. data: an object, canonical JSON; what is in it is the gateway's
    (gateway/directory/entries.py), and never a secret. version: from 1, one more with each change. revoked: for ever.
    """

    at_ns: int
    data: msgspec.Raw
    kind: Literal["key", "tenant"]
    name: str
    revoked: bool = False
    version: int

    @property
    def field(self) -> str:
        """Its name among those of all kinds, as the store has it."""
        return f"{self.kind}:{self.name}"


class DirectoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """The directory has a new entry, or another version of one. actor: as of an event. change: what was asked for."""

    actor: str
    at_ns: int
    change: str
    entry: Entry
    kind: Literal["directory"] = "directory"
    prev: str
    request_id: str | None
    seq: int
    v: int = VERSION


BackendState = Literal["starting", "compiling", "warming", "ready", "draining", "down", "gone"]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """From `at_ns` on this backend, which owns `units` of the `units_total` of this instance, is in `state`.

    It holds until the same writer's next one of the same instance and backend: cost/hours.py. One is written when
    something changes, and at each full hour. instance_id: `backend:<name>` if it is not known, an instance of its own.
    billed: when the instance is paid for (cost/schedule.py). launched_ns, terminated_ns: of the instance; None:
    not told. model: the id of the one that the backend serves. state `gone`: it is on the instance no more.
    """

    account: str | None = None
    at_ns: int
    az: str | None = None
    backend: str
    billed: str = "always"
    instance_id: str
    instance_type: str | None = None
    kind: Literal["registration"] = "registration"
    launched_ns: int | None = None
    model: str | None = None
    prev: str
    purchase_option: str | None = None
    region: str | None = None
    seq: int
    simulated: bool = False
    slots: int | None = None
    source: Literal["agent", "config"]
    state: BackendState
    terminated_ns: int | None = None
    units: int | None = None
    units_total: int | None = None
    v: int = VERSION


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Last line of a directory: written by its writer, or by the salvage that closed it.

    torn_bytes, torn_digest: the tail that did not continue the chain, less trailing NULs.
    """

    at_ns: int
    kind: Literal["stop"] = "stop"
    lost: int = 0
    prev: str
    reason: Literal["shutdown", "salvaged"]
    seq: int
    torn_bytes: int = 0
    torn_digest: str | None = None
    v: int = VERSION


Line = (
    Start | Identity | Admitted | CallRecord | Refused | Tick | Checkpoint | Event | DirectoryChange
    | Registration | Stop
)  # fmt: skip
KINDS: dict[str, type[Any]] = {
    "start": Start, "identity": Identity, "admitted": Admitted, "call": CallRecord, "refused": Refused,
    "tick": Tick, "checkpoint": Checkpoint, "event": Event, "directory": DirectoryChange,
    "registration": Registration, "stop": Stop,
}  # fmt: skip
VERSIONS: dict[str, int] = {
    kind: field.default
    for kind, type_ in KINDS.items()
    for field in msgspec.structs.fields(type_)
    if field.name == "v"
}
"""The newest version of each kind that is known here; older ones are read too."""
