"""The state of one backend, as a table. Pure.

           probe ok         probe said no      connect failed
starting   ready            starting           starting
ready      ready            down               ready, down at the third in a row
down       ready            down               down

A probe is `GET /health`; "said no" is any answer but 200. Connect failures of calls count like those
of probes; answers to calls do not: a 4xx proves nothing, and a 5xx is the attempt's to handle.
`starting` is a backend that has not been ready yet: minutes of compiling must not read as death.

Beside the state stands the hold: a backend that answered 429 or 503 with a Retry-After gets no calls until then.
That is no fault, so the state does not change, and no failure is counted.
"""

import enum

import msgspec

from metering import units

CONNECT_FAILURES_MAX = 3
PROBE_INTERVAL_S = 2.0
HOLD_S_MAX = 60
"""After a longer Retry-After it is asked again all the same: that costs an attempt, and a wrong word a minute."""


class State(enum.StrEnum):
    """What a backend is fit for: only `ready` ones are given calls."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """State and the reason for it, a short phrase with no address. A fresh one has not been probed."""

    state: State = State.STARTING
    connect_failures: int = 0
    reason: str = "not probed yet"

    @property
    def words(self) -> str:
        """The reason for /readyz, with how often it came in a row."""
        many = self.connect_failures > 1
        return f"{self.reason} ({self.connect_failures} in a row)" if many else self.reason


def passed(_health: Health) -> Health:
    """A probe was answered with 200."""
    return Health(state=State.READY, reason="healthy")


def said_no(health: Health, reason: str) -> Health:
    """A probe was answered with something else: it is there and not able."""
    state = State.STARTING if health.state is State.STARTING else State.DOWN
    return Health(state=state, reason=reason)


def connect_failed(health: Health, reason: str) -> Health:
    """A probe or a call could not connect, or a probe got no answer in time."""
    failures = health.connect_failures + 1
    down = health.state is State.READY and failures >= CONNECT_FAILURES_MAX
    return Health(
        state=State.DOWN if down else health.state,
        connect_failures=failures,
        reason=reason,
    )


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A backend said that it is busy. status: 429 or 503; until_ns: when it may be asked again (monotonic)."""

    status: int
    until_ns: int

    def left_s(self, now_ns: int) -> int:
        """How much longer, in whole seconds, rounded up."""
        return -((now_ns - self.until_ns) // units.NS_PER_S)


def busy(status: int, retry_after_s: int | None, now_ns: int) -> Hold | None:
    """What a 429 or 503 means for the next calls. None: nothing, since the backend did not say when to come back."""
    if retry_after_s is None:
        return None
    return Hold(status=status, until_ns=now_ns + min(retry_after_s, HOLD_S_MAX) * units.NS_PER_S)
