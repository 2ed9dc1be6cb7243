"""Attempts that failed, as log lines: a fold of the journal, as all that is told of calls.

One that the gateway ended itself (at a stop, or by a mistake of its own) is said to have been cut: there is nothing
to look for at its server. Of a kind (backend, outcome, error) at most one line a second: a server that refuses
everything must not fill the log. `more` is how many of the kind have gone unsaid since its last line, if any.
"""

import logging

from gateway.api.errors import Fault, ShuttingDown
from metering.logs import log
from metering.record import AttemptOutcome, AttemptRecord, CallRecord, Line
from metering.units import NS_PER_S

QUIET_NS = NS_PER_S

_FAILED = {AttemptOutcome.UNAVAILABLE, AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}

_OURS = {ShuttingDown.code, Fault.code}
"""The errors of attempts that were cut by the gateway."""

Kind = tuple[str, AttemptOutcome, str | None]

logger = logging.getLogger("weighbridge.calls")


class AttemptLog:
    """A Fold. Errors are fixed phrases and backends are configured, so the kinds are few."""

    def __init__(self) -> None:
        self._said_ns: dict[Kind, int] = {}
        self._unsaid: dict[Kind, int] = {}

    def fold(self, line: Line, _seq: int, _leaf: str) -> None:
        """Say which attempts of a call failed."""
        if line.kind == "call":
            for attempt in line.attempts:
                if attempt.outcome in _FAILED:
                    self._say(line, attempt)

    def turn(self, _seq: int, _leaf: str) -> None:
        """Nothing waits for the turn's end."""

    def _say(self, call: CallRecord, attempt: AttemptRecord) -> None:
        kind = attempt.backend, attempt.outcome, attempt.error
        said_ns = self._said_ns.get(kind)
        # The clock of the journal is the wall's: one that was set back must not silence a kind.
        if said_ns is not None and 0 <= call.at_ns - said_ns < QUIET_NS:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        self._said_ns[kind] = call.at_ns
        more = {"more": unsaid} if (unsaid := self._unsaid.pop(kind, 0)) else {}
        log(
            logger, logging.WARNING, _phrase(attempt), call_id=call.call_id, backend=attempt.backend,
            outcome=attempt.outcome.value, error=attempt.error, call_outcome=call.outcome.value,
            **more,
        )  # fmt: skip


def _phrase(attempt: AttemptRecord) -> str:
    return "attempt cut by the gateway" if attempt.error in _OURS else "attempt failed"
