"""What facts say of hours, summed for their close (metering/cost/close_usage.py). Pure."""

from typing import NamedTuple


class Piece(NamedTuple):
    """A time within one hour in which a backend owned the same instances. number: from 0 within (backend, hour)."""

    backend: str
    hour: int
    number: int
    from_ns: int
    to_ns: int


class Ready(NamedTuple):
    """A time within one hour in which a backend was able to serve; those of a backend do not overlap."""

    backend: str
    hour: int
    from_ns: int
    to_ns: int


class Used(NamedTuple):
    """Attempts of one kind. piece: its number; 0 too where the hour has none of it. backend: None: no attempt was made.

    served: the backend served these calls; what did not is overhead. slot_ns; work_…: tokens of these attempts.
    calls … unpriced_calls: of the calls that finished in this hour.
    """

    hour: int
    backend: str | None
    piece: int
    served: bool
    tenant: str
    project: str | None
    model: str
    operation: str
    tags: dict[str, str] | None
    family: str | None
    simulated: bool
    slot_ns: int
    work_prompt_tokens: int
    work_cached_prompt_tokens: int
    work_completion_tokens: int
    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    estimated_pusd: int
    unpriced_calls: int


class Busy(NamedTuple):
    """For how long a backend had at least one attempt; ready_ns: while it was ready."""

    hour: int
    backend: str
    piece: int
    busy_ns: int
    ready_ns: int


class HourOfFacts(NamedTuple):
    """What facts say of one hour."""

    hour: int
    used: list[Used]
    busy: list[Busy]
