"""What has happened to a call so far, and the two journal lines that say it. Pure.

The machine (call.py) notes facts here as they come; the lines are made at the flush.
Times are monotonic nanoseconds here and wall-clock ones in the lines.
"""

import msgspec

from backends import dialects, settling
from backends.reader import StreamReader
from backends.settling import Settled
from backends.sized import Sized
from gateway.api.operations import Operation
from gateway.calls.routing import NOBODY, Plan, Target
from metering import record, units
from metering.cost import pricing
from metering.cost.pricing import Priced
from metering.record import AttemptOutcome, AttemptRecord, CallRecord, Outcome
from metering.usage import UNKNOWN, Usage

_call_record = record.in_order(CallRecord)
_admitted = record.in_order(record.Admitted)
_attempt_record = record.in_order(AttemptRecord)
_CALL_VERSION = record.VERSIONS["call"]
_EXPECTED_VERSION = record.VERSIONS["admitted"]


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a call at its admission.

    keys: names of its parameters that some hardware does not apply. wall_ns − now_ns: the offset of the wall clock
    at its start. expected: what it is billed if it is lost; unset: nothing.
    """

    call_id: str
    request_id: str
    trace_id: str | None
    tenant: str
    project: str | None
    key_id: str
    tags: dict[str, str]
    operation: Operation
    model: str
    model_requested: str
    stream: bool
    include_usage: bool
    keys: tuple[str, ...]
    params: record.Params
    body_bytes: int
    received_ns: int
    wall_offset_ns: int
    expected: record.Expected | msgspec.UnsetType = msgspec.UNSET


facts_in_order = record.in_order(Facts)
"""Makes `Facts` of all their fields, without names."""


_OF_AN_ATTEMPT = (
    "ended_ns", "finish_reasons", "first_event_ns", "mended", "reconnected", "served", "status", "usage",
)  # fmt: skip


class Tally:
    """The books of one call.

    target, tier, status, usage, mended, finish_reasons and the times are those of the last attempt, the serving one if
    there is one. served: an answer, or work on one, was produced for this client: it is priced; else it costs nothing.
    """

    __slots__ = (
        "admitted_ns", "attempts", "dispatched_ns", "ended_ns", "facts", "fallback", "finish_reasons",
        "first_event_ns", "first_token_ns", "last_token_ns", "mended", "plan", "queue_wait_ns", "reconnected",
        "response_bytes", "served", "spill", "started_ns", "status", "target", "tier", "usage",
    )  # fmt: skip

    admitted_ns: int  # from the admission on
    started_ns: int  # of the last attempt

    def __init__(self, facts: Facts, plan: Plan) -> None:
        self.facts = facts
        self.plan = plan
        self.fallback = plan.unable
        self.spill: str | None = None
        self.queue_wait_ns = 0
        self.dispatched_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.response_bytes = 0
        self.attempts: list[AttemptRecord] = []
        self.target: Target | None = None
        self.tier: int | None = None
        self.first_event_ns: int | None = None
        self.ended_ns: int | None = None
        self.status: int | None = None
        self.reconnected = False
        self.served = False
        self.usage: Usage = UNKNOWN
        self.mended: tuple[str, ...] = ()
        self.finish_reasons: tuple[str, ...] | None = None

    def _clear(self) -> None:
        """What is known of the last attempt is not of the next one."""
        fresh = Tally(self.facts, self.plan)
        for name in _OF_AN_ATTEMPT:
            setattr(self, name, getattr(fresh, name))

    def begin_attempt(self, target: Target, tier: int, now_ns: int) -> None:
        """A seat at `target` is ours; its slot time begins."""
        if self.attempts:
            self._clear()
        self.target, self.tier, self.started_ns = target, tier, now_ns

    def read_stream(self, reader: StreamReader) -> None:
        """What a stream, whole or cut, has used. One that nobody was served is not priced: only what was reported."""
        self.finish_reasons, self.usage, self.mended = reader.finish_reasons, reader.usage, reader.mended
        if self.served:
            self._settle(settling.of_stream(reader, self._prompt_estimate()))

    def read_answer(self, answer: Sized) -> None:
        """What a sized answer has used."""
        self.finish_reasons = answer.finish_reasons
        if settling.is_settled(answer):
            self.usage = answer.usage
        else:
            self._settle(settling.of_sized(answer, self._prompt_estimate()))

    def read_nothing(self) -> None:
        """Work was begun, and nothing of an answer has come."""
        self._settle(settling.of_nothing(self._prompt_estimate()))

    def _settle(self, settled: Settled) -> None:
        self.usage = settled.usage
        self.mended += settled.flags

    def _prompt_estimate(self) -> int | None:
        assert self.target is not None
        answer = self.facts.operation.answer
        if not answer.costs_tokens:
            return 0
        if not answer.reads_text:
            return None
        return settling.prompt_estimate(self.facts.body_bytes, self.target.max_model_len)

    def end_attempt(self, outcome: AttemptOutcome, error: str | None, now_ns: int) -> None:
        """Its slot time is over. error: a fixed phrase."""
        assert self.target is not None
        self.ended_ns = now_ns
        offset_ns, first_ns = self.facts.wall_offset_ns, self.first_event_ns
        self.attempts.append(
            _attempt_record(
                self.target.name,  # backend
                now_ns + offset_ns,  # ended_ns
                error,  # error
                None if first_ns is None else first_ns + offset_ns,  # first_event_ns
                self.target.host.instance_family,  # instance_family
                outcome,  # outcome
                self.reconnected,  # reconnected
                now_ns - self.started_ns if self.facts.operation.answer.costs_tokens else 0,  # slot_ns
                self.started_ns + offset_ns,  # started_ns
                self.status,  # status
                self.usage,  # usage
            )
        )

    @property
    def work(self) -> int | None:
        """Work units of the last attempt; None: something was served, and nobody counted tokens."""
        assert self.target is not None
        usage = self.usage
        known = [usage.prompt_tokens, usage.completion_tokens]
        if known == [None, None]:
            return None if self.served else 0
        prompt, completion = [0 if count is None else count for count in known]
        cached = 0 if usage.cached_prompt_tokens is None else usage.cached_prompt_tokens
        return self.target.work_units.of(prompt, cached, completion)

    def note_tokens(self, now_ns: int, *, finished: bool) -> None:
        """A read held tokens, or came after the first one did. finished: after the last one too."""
        if self.first_token_ns is None:
            self.first_token_ns = self.last_token_ns = now_ns
        elif not finished:
            self.last_token_ns = now_ns

    def ignored(self) -> tuple[str, ...]:
        """The parameters asked for that the serving hardware is documented not to apply."""
        if not self.facts.keys or self.target is None:
            return ()
        return dialects.ignored(self.target.host.instance_family, self.facts.keys)

    def admitted(self, seq: int, prev: str) -> record.Admitted:
        """The `admitted` line."""
        facts = self.facts
        offset_ns = facts.wall_offset_ns
        admitted_ns = self.admitted_ns + offset_ns
        return _admitted(
            admitted_ns,  # admitted_ns
            admitted_ns,  # at_ns
            facts.body_bytes,  # body_bytes
            facts.call_id,  # call_id
            facts.expected,  # expected
            facts.key_id,  # key_id
            "admitted",  # kind
            facts.model,  # model
            facts.model_requested,  # model_requested
            facts.operation.name,  # operation
            facts.params,  # params
            prev,  # prev
            facts.project,  # project
            facts.received_ns + offset_ns,  # received_ns
            facts.request_id,  # request_id
            seq,  # seq
            facts.stream,  # stream
            facts.tags,  # tags
            facts.tenant,  # tenant
            facts.trace_id,  # trace_id
            record.VERSION if facts.expected is msgspec.UNSET else _EXPECTED_VERSION,  # v
        )

    def record(
        self,
        outcome: Outcome,
        status: int | None,
        error_code: str | None,
        now_ns: int,
        *,
        seq: int,
        prev: str,
    ) -> CallRecord:
        """The fact of the call, which ended so. now_ns: the moment of the flush."""
        facts, target = self.facts, self.target
        offset_ns = facts.wall_offset_ns
        first_ns, last_ns = self.first_token_ns, self.last_token_ns
        dispatched_ns, backend_ended_ns = self.dispatched_ns, self.ended_ns
        shown = NOBODY if target is None else target.shown
        slot_ns = self.attempts[-1].slot_ns if self.attempts else None
        priced = self._priced(slot_ns)
        return _call_record(
            None,  # adapter
            self.admitted_ns + offset_ns,  # admitted_ns
            now_ns + offset_ns,  # at_ns
            tuple(self.attempts),  # attempts
            shown.backend,  # backend
            None if backend_ended_ns is None else backend_ended_ns + offset_ns,  # backend_ended_ns
            facts.body_bytes,  # body_bytes
            facts.call_id,  # call_id
            msgspec.UNSET,  # capture
            None,  # client_labels
            priced.cost_pusd if priced else 0,  # cost_pusd
            None,  # digests
            None if dispatched_ns is None else dispatched_ns + offset_ns,  # dispatched_ns
            None,  # end_user
            error_code,  # error_code
            self.fallback,  # fallback_reason
            self.finish_reasons,  # finish_reasons
            now_ns + offset_ns,  # finished_ns
            None if first_ns is None else first_ns + offset_ns,  # first_token_ns
            shown.identity_digest,  # identity_digest
            shown.identity_source,  # identity_source
            shown.instance_family,  # instance_family
            shown.instances,  # instances
            facts.key_id,  # key_id
            "call",  # kind
            None if last_ns is None else last_ns + offset_ns,  # last_token_ns
            self.mended,  # mended
            facts.model,  # model
            facts.model_requested,  # model_requested
            shown.neuron_version,  # neuron_version
            facts.operation.name,  # operation
            outcome,  # outcome
            facts.params,  # params
            self.ignored() if facts.keys else (),  # params_ignored
            self.plan.line,  # plan
            prev,  # prev
            priced.price_basis if priced else None,  # price_basis
            facts.project,  # project
            self.queue_wait_ns,  # queue_wait_ns
            priced.rate_card if priced else None,  # rate_card
            facts.received_ns + offset_ns,  # received_ns
            facts.request_id,  # request_id
            self.response_bytes,  # response_bytes
            seq,  # seq
            shown.simulated,  # simulated
            slot_ns,  # slot_ns
            shown.slots,  # slots
            self.spill,  # spill_reason
            status,  # status
            facts.stream,  # stream
            facts.tags,  # tags
            facts.tenant,  # tenant
            self.tier,  # tier
            None if first_ns is None else self._tpot_ns(),  # tpot_ns
            facts.trace_id,  # trace_id
            None if first_ns is None else first_ns - facts.received_ns,  # ttft_ns
            priced.unpriced_reason if priced else None,  # unpriced_reason
            self.usage if self.served else UNKNOWN,  # usage
            _CALL_VERSION,  # v
            shown.warm_state,  # warm_state
        )

    def _priced(self, slot_ns: int | None) -> Priced | None:
        """The price of an answer, or of a part of one; None: the call was served nothing, and costs nothing."""
        if self.served and self.target is not None:
            tariff = self.target.tariffs.at(self.admitted_ns + self.facts.wall_offset_ns)
            return pricing.price(tariff, self.usage, slot_ns)
        return None

    def _tpot_ns(self) -> int | None:
        tokens = self.usage.completion_tokens
        if self.first_token_ns is None or self.last_token_ns is None or tokens is None or tokens < 2:
            return None
        return units.div_half_up(self.last_token_ns - self.first_token_ns, tokens - 1)
