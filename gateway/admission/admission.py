"""What a call has to do with the limits of its tenant, project, key and model: from its wish to its settling.

    request ─▶ wish: tokens and money (expectation.py) ─▶ the limiter ─┬▶ granted ─▶ … record ─▶ settled
                                                                       └▶ refused ─▶ an error

A call that no limit applies to has one too where its tenant is billed for lost calls: it does not ask, and teaches what
such calls take.

What a call took is known at its record: tokens that it did not take go back at once, its cost is held until the ledger
has it. A call that got nothing gives all of it back. Calls that ended well are what the next are expected to take.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from gateway.admission import expectation, ratelimit_headers
from gateway.admission.expectation import Demand, Estimate, Expectations
from gateway.api import errors
from gateway.api.errors import GatewayError
from gateway.api.operations import Operation
from gateway.calls.routing import Plan
from gateway.calls.targets import ServedModel
from gateway.configuration.config import Tenant
from metering.limits.asks import Answer, Ask, Granted, Principal, Rate, Refused, Wish
from metering.limits.limiter import CANNOT
from metering.record import CallRecord, Expected, Outcome

CONCURRENCY_WAIT_MS = 1_000
"""When a call that found too many under way may be asked again: nobody knows when one of them ends."""

_SERVED = frozenset({Outcome.COMPLETED, Outcome.CLIENT_GONE})
"""Outcomes of calls that took what they asked for."""


class Asked(Protocol):
    """What is read of a request's body."""

    @property
    def max_tokens(self) -> int | None:
        """The client's bound."""

    @property
    def n(self) -> int | None:
        """How many answers it wants."""


class Limiter(Protocol):
    """Who holds calls to limits: metering/limits/limiter.py."""

    def applies(self, principal: Principal, model: str) -> bool:
        """Is there any limit that such a call is held to?"""

    def ask(self, wish: Wish, answered: Callable[[Answer], None]) -> Ask:
        """Ask for room; `answered` is called later, unless it is given up."""

    def rates(self, principal: Principal, model: str) -> tuple[Rate | None, Rate | None]:
        """How its rates of requests and of tokens stand."""

    def give_up(self, ask: Ask) -> None:
        """Nobody waits for the answer."""

    def settle(self, granted: Granted, *, cost_pusd: int | None, tokens: int, seq: int | None) -> None:
        """It took so much."""

    def failed(self, granted: Granted, *, cost_pusd: int | None = None, seq: int | None = None) -> None:
        """It got nothing."""


class Admissions:
    """Of one worker: what calls are expected to take, and whom they ask."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.expectations = Expectations()
        self._worst: frozenset[str] = frozenset()
        self._lost_billed: frozenset[str] = frozenset()

    def use(self, tenants: Iterable[Tenant]) -> None:
        """Tenants, how much their calls hold, or whether lost ones are billed, are others now."""
        known = tuple(tenants)
        self._worst = frozenset(tenant.name for tenant in known if tenant.hold == "worst")
        self._lost_billed = frozenset(tenant.name for tenant in known if tenant.lost == "estimated")

    def lines(self, principal: Principal, model: str) -> bytes:
        """Headers that tell how the limits of such a call stand, which has not come to ask."""
        return ratelimit_headers.lines(*self.limiter.rates(principal, model))

    def of(
        self,
        principal: Principal,
        served: ServedModel,
        operation: Operation,
        ask: Asked,
        body: bytes,
        plan: Plan,
        wall_ns: int,
    ) -> "Admission | None":
        """A call's; None: no limit applies to it, and lost it costs nothing. wall_ns: now, since 1970."""
        tenant, model = principal.tenant, served.id
        asks = self.limiter.applies(principal, model)
        lost_billed = tenant in self._lost_billed and operation.answer.costs_tokens
        if not asks and not lost_billed:
            return None
        demand = Demand(len(body), ask.max_tokens, ask.n or 1, bool(operation.lengths), operation.form)
        made = Admission(self, tenant, model, demand)
        if lost_billed:
            first = plan.able[0].target.tariffs.at(wall_ns)
            made.expected = self.expectations.if_lost(tenant, model, demand, first)
        if asks:
            estimate = self._estimate(tenant, served, operation, demand, body, plan, wall_ns)
            made.bound = bound_of(operation, estimate)
            made.wish = Wish(
                tenant=tenant,
                project=principal.project,
                key_id=principal.key_id,
                model=model,
                tokens=estimate.tokens,
                tokens_min=estimate.tokens_min,
                hold_pusd=estimate.hold_pusd,
            )
        return made

    def _estimate(
        self,
        tenant: str,
        served: ServedModel,
        operation: Operation,
        demand: Demand,
        body: bytes,
        plan: Plan,
        wall_ns: int,
    ) -> Estimate:
        """By what its tenant has its calls hold."""
        if tenant in self._worst:
            tariffs = [one.target.tariffs.at(wall_ns) for one in plan.able]
            lengths = [one.target.max_model_len for one in plan.able]
            above = expectation.ceiling(
                body,
                operation.name,
                length_max=None if None in lengths else max(filter(None, lengths)),
                slot_ns_max=served.limits.total_ns,
            )
            return self.expectations.worst(tenant, served.id, demand, tariffs, above)
        first = plan.able[0].target.tariffs.at(wall_ns)
        return self.expectations.expected(tenant, served.id, demand, first)


def bound_of(operation: Operation, estimate: Estimate) -> tuple[str, bytes] | None:
    """The bound to write into a request: name and value. The last name is the one that the oldest servers know."""
    if estimate.written is None:
        return None
    return operation.lengths[-1], b"%d" % estimate.written


class Admission:
    """Of one call; the relay's `Limits`.

    wish: what it asks for; None: no limit applies to it. bound: to be written into its request. expected: what it is
    billed if it is lost; unset: nothing.
    """

    __slots__ = (
        "_admissions", "_answered", "_ask", "_demand", "_granted", "_model", "_record", "_refused", "_tenant", "bound",
        "expected", "wish",
    )  # fmt: skip

    def __init__(self, admissions: Admissions, tenant: str, model: str, demand: Demand) -> None:
        self.wish: Wish | None = None
        self.bound: tuple[str, bytes] | None = None
        self.expected: Expected | msgspec.UnsetType = msgspec.UNSET
        self._admissions = admissions
        self._tenant = tenant
        self._model = model
        self._demand = demand
        self._answered: Callable[[GatewayError | None], None] | None = None
        self._ask: Ask | None = None
        self._granted: Granted | None = None
        self._refused: Refused | None = None
        self._record: CallRecord | None = None

    @property
    def asks(self) -> bool:
        """Does any limit apply to it?"""
        return self.wish is not None

    @property
    def lines(self) -> bytes:
        """Headers that tell how the limits stand."""
        if self._granted is not None:
            return ratelimit_headers.lines(self._granted.requests, self._granted.rate_of_tokens)
        if self._refused is not None:
            return ratelimit_headers.lines(self._refused.requests, self._refused.rate_of_tokens)
        return b""

    def ask(self, answered: Callable[[GatewayError | None], None]) -> None:
        """Ask for room. answered: called later, with None if there is."""
        assert self.wish is not None
        self._answered = answered
        self._ask = self._admissions.limiter.ask(self.wish, self._told)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        assert self._ask is not None
        self._answered = None
        self._admissions.limiter.give_up(self._ask)

    def _told(self, answer: Answer) -> None:
        answered, self._answered, self._ask = self._answered, None, None
        assert answered is not None
        if isinstance(answer, Granted):
            self._granted = answer
            answered(None)
        else:
            self._refused = answer
            answered(error_of(answer))

    def sealed(self, line: CallRecord) -> None:
        """This is its record."""
        self._record = line

    def unrecorded(self) -> None:
        """It is in no journal."""
        self._record = None

    def end(self) -> None:
        """The call is over: give back what it did not take, and learn of it."""
        granted, record = self._granted, self._record
        if granted is not None:
            self._settle(granted, record)
        if record is not None and record.outcome is Outcome.COMPLETED:
            self._admissions.expectations.learn(
                self._tenant, self._model, self._demand, record.usage, record.cost_pusd
            )

    def _settle(self, granted: Granted, record: CallRecord | None) -> None:
        limiter = self._admissions.limiter
        if record is None:
            limiter.failed(granted)
            return
        seq = record.seq or None  # a line that is only shown has none, and nobody folds it
        if record.outcome not in _SERVED or not record.attempts:
            limiter.failed(granted, cost_pusd=record.cost_pusd, seq=seq)
            return
        usage = record.usage
        tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        limiter.settle(granted, cost_pusd=record.cost_pusd, tokens=tokens, seq=seq)


def error_of(refused: Refused) -> GatewayError:
    """What a client is told."""
    limit, wait_ms = refused.limit, refused.retry_after_ms
    if limit == CANNOT:
        return errors.LimitsUnavailable(
            "the limits of this key cannot be looked at now; try again", retry_after_s=1
        )
    if refused.code == "insufficient_quota":
        when = "" if wait_ms is None else f"; its window ends in {ratelimit_headers.duration(wait_ms)}"
        return errors.OutOfBudget(f"there is no room under {limit}{when}", limit=limit, wait_ms=wait_ms)
    kind = limit.partition(" ")[0]
    if kind == "concurrency":
        wait_ms = wait_ms or CONCURRENCY_WAIT_MS
    when = (
        "it can never be admitted"
        if wait_ms is None
        else f"try again in {ratelimit_headers.duration(wait_ms)}"
    )
    of = "tokens" if kind == "tokens_per_minute" else None
    return errors.RateLimited(f"there is no room under {limit}; {when}", limit=limit, wait_ms=wait_ms, of=of)
