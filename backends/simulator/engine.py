"""The batch of a simulated server: seats, the queue before them, one step for all. Pure.

    submit ─▶ WAITING ─seat free─▶ PREFILL ─ttft─▶ DECODE ─last token─▶ DONE
                  │                   │              │  └─hold─▶ HELD (keeps its seat)
                  └───────────────────┴──── abort ───┴────────────┴──▶ DONE

A continuous batcher as in vLLM: first come, first served; every decoding sequence gets one token a step; a step
takes the longer the more seats are taken (profiles.py). Time is an argument: whoever drives the engine
calls `advance` when `due_ns` has come.
"""

import enum
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from backends.simulator.metrics import Metrics
from backends.simulator.plans import Plan
from backends.simulator.prefix_cache import BLOCK_TOKENS, PrefixCache
from backends.simulator.profiles import Profile


class State(enum.Enum):
    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    HELD = enum.auto()
    DONE = enum.auto()


class Sink(Protocol):
    """Who gets a sequence's tokens. It may abort or hold sequences from within `token`."""

    def token(self, sequence: "Generated", text: str, finish_reason: str | None) -> None: ...


class Generated:
    """One sequence: an answer to a prompt. A request with n choices has n.

    index: of the choice. plan: what it will say. reads: the prompt is read, nothing is generated, and one call of the
    sink says so. generated: tokens so far. cached: prompt tokens found in the prefix cache; known from PREFILL on.
    """

    __slots__ = (
        "arrived_ns", "cached", "generated", "index", "last_ns", "plan", "prompt", "reads", "salt", "sink", "state",
    )  # fmt: skip

    def __init__(
        self,
        *,
        prompt: Sequence[str],
        index: int,
        plan: Plan,
        salt: str | None,
        sink: Sink,
        reads: bool = False,
    ) -> None:
        assert prompt
        self.prompt = prompt
        self.salt = salt
        self.index = index
        self.plan = plan
        self.reads = reads
        self.sink = sink
        self.state = State.WAITING
        self.arrived_ns = 0
        self.last_ns = 0
        self.generated = 0
        self.cached = 0

    def next_token(self) -> tuple[str, str | None]:
        """The next token's text, and why it is the last (None: it is not)."""
        plan = self.plan
        assert self.generated < plan.length
        self.generated += 1
        return next(plan.texts, ""), plan.finish_reason if self.generated == plan.length else None


class Engine:
    """Seats and queue. `due_ns` says when something happens next; None: nothing will by itself."""

    def __init__(self, profile: Profile, slots: int, cache: PrefixCache, metrics: Metrics) -> None:
        assert slots >= 1
        self._profile = profile
        self._slots = slots
        self._cache = cache
        self._metrics = metrics
        self._waiting: OrderedDict[Generated, None] = OrderedDict()
        self._prefills: list[tuple[int, int, Generated]] = []
        self._decoding: dict[Generated, None] = {}
        self._held: dict[Generated, None] = {}
        self._step_ns: int | None = None
        self._prefilling = 0
        self._order = 0

    @property
    def running(self) -> int:
        """Seats taken."""
        return self._prefilling + len(self._decoding) + len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def due_ns(self) -> int | None:
        prefill_ns = self._prefill_due_ns()
        return min((due for due in (prefill_ns, self._step_ns) if due is not None), default=None)

    def cache_used(self, max_model_len: int) -> float:
        """Blocks of the running sequences as a part of those that full seats could need."""
        blocks = sum(-(-(len(s.prompt) + s.generated) // BLOCK_TOKENS) for s in self._seated())
        return blocks / (self._slots * -(-max_model_len // BLOCK_TOKENS))

    def submit(self, sequences: Iterable[Generated], now_ns: int) -> None:
        """Put a request's sequences at the end of the queue, or in their seats if these are free."""
        for sequence in sequences:
            assert sequence.state is State.WAITING
            sequence.arrived_ns = now_ns
            self._waiting[sequence] = None
        self._seat(now_ns)

    def advance(self, now_ns: int) -> None:
        """Let everything happen that is due by `now_ns`: first tokens, then one step for the batch."""
        while (due_ns := self._prefill_due_ns()) is not None and due_ns <= now_ns:
            _, _, sequence = heapq.heappop(self._prefills)
            self._first_token(sequence, now_ns)
        if self._step_ns is not None and self._step_ns <= now_ns:
            self._step(now_ns)
        self._seat(now_ns)

    def abort(self, sequence: Generated, now_ns: int) -> None:
        """Its client is gone: the seat is free at once. Without effect on one that is done."""
        if sequence.state is not State.DONE:
            self._leave(sequence)
            self._seat(now_ns)

    def hold(self, sequence: Generated) -> None:
        """It gets no more tokens, and keeps its seat until it is aborted; one that still waits leaves."""
        seated = sequence.state in (State.PREFILL, State.DECODE)
        if seated or sequence.state is State.WAITING:
            self._leave(sequence)
        if seated:
            self._held[sequence] = None
            sequence.state = State.HELD

    def _prefill_due_ns(self) -> int | None:
        while self._prefills and self._prefills[0][2].state is not State.PREFILL:  # aborted or held since
            heapq.heappop(self._prefills)
        return self._prefills[0][0] if self._prefills else None

    def _seated(self) -> Iterator[Generated]:
        yield from self._decoding
        yield from self._held
        yield from (s for _, _, s in self._prefills if s.state is State.PREFILL)

    def _seat(self, now_ns: int) -> None:
        seated = []
        while self._waiting and self.running < self._slots:
            sequence, _ = self._waiting.popitem(last=False)
            self._prefilling += 1
            sequence.state = State.PREFILL
            sequence.cached = self._cache.take(sequence.prompt, sequence.salt)
            self._metrics.queue_time.observe(now_ns - sequence.arrived_ns)
            seated.append(sequence)
        if seated:
            due_ns = now_ns + self._profile.ttft_ns(self.running)  # one prefill for all that came together
            for sequence in seated:
                self._order += 1
                heapq.heappush(self._prefills, (due_ns, self._order, sequence))

    def _first_token(self, sequence: Generated, now_ns: int) -> None:
        self._prefilling -= 1
        sequence.state = State.DECODE
        self._decoding[sequence] = None
        self._metrics.prompt_tokens += len(sequence.prompt)
        self._metrics.cached_prompt_tokens += sequence.cached
        self._metrics.ttft.observe(now_ns - sequence.arrived_ns)
        if self._step_ns is None and not sequence.reads:
            self._step_ns = now_ns + self._profile.tpot_ns(self.running)
        self._emit(sequence, now_ns)

    def _step(self, now_ns: int) -> None:
        assert self._step_ns is not None
        # From when it was due, not from now: a late timer must not slow the batch down.
        self._step_ns = max(now_ns, self._step_ns + self._profile.tpot_ns(max(1, self.running)))
        for sequence in [s for s in self._decoding if s.last_ns < now_ns]:
            if sequence.state is State.DECODE:  # an earlier one's sink may have aborted it
                self._metrics.inter_token.observe(now_ns - sequence.last_ns)
                self._emit(sequence, now_ns)

    def _emit(self, sequence: Generated, now_ns: int) -> None:
        text, finish_reason = sequence.next_token()
        sequence.last_ns = now_ns
        if not sequence.reads:
            self._metrics.generation_tokens += 1
        if finish_reason is not None:
            self._leave(sequence)
            self._metrics.finished[finish_reason] += 1
            self._metrics.e2e.observe(now_ns - sequence.arrived_ns)
        sequence.sink.token(sequence, text, finish_reason)

    def _leave(self, sequence: Generated) -> None:
        match sequence.state:
            case State.WAITING:
                del self._waiting[sequence]
            case State.PREFILL:
                self._prefilling -= 1
            case State.DECODE:
                del self._decoding[sequence]
                if not self._decoding:
                    self._step_ns = None
            case _:
                assert sequence.state is State.HELD
                del self._held[sequence]
        sequence.state = State.DONE
