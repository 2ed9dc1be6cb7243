"""The limits of all tenants, as one worker holds its calls to them.

    ask ─▶ desk of the tenant ─(one message a tenant, all of a turn in one write)─▶ store ─▶ granted or refused
                                                                             └─ away ─▶ the tenant's policy

Calls wait for the store's answer, a round trip, and for nothing else: ends and folds travel with the next ask, or some
ms later. While the store is away, or does not know yet what was spent, each tenant's policy decides, and the store is
told of all that is under way as soon as it is back (DESIGN: holds; deploy/reference/ledger.md).
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import hiredis
import msgspec

from metering.ledger.scripts import lua
from metering.limits import messages
from metering.limits.asks import Answer, Ask, Granted, Principal, Rate, Refused, Scope, Wish, ask_of, tightest
from metering.limits.connection import LOST, Link, command
from metering.limits.desk import AGAIN_MS, Desk, Outcome, Passed, refusal
from metering.limits.links import Links
from metering.limits.messages import Kind, Message, Status
from metering.limits.rules import drained
from metering.limits.share import Share
from metering.limits.terms import Era, TenantTerms, era
from metering.logs import log
from metering.units import NS_PER_MS

LATER_S = 0.003
"""Ends and folds wait for a message to travel with, for once to twice as long; shorter than a refused call waits to be
asked again."""
SWEEP_S = 0.05
BEAT_MS = 1_000
COUNT_MS = 5_000
GRACE_MS = 250
"""For how long calls wait for a connection that was lost; then the policy decides."""
OPEN_S_MAX = 1.0
CLOSE_S_MAX = 0.5
RETRY_MS = 1_000
WORKERS_KEY = "wb:1:workers"
CANNOT = "limits that cannot be checked now: their store is away"

logger = logging.getLogger("weighbridge.limits")


class Limiter:
    """Of one worker. All on the loop's thread. Raises ValueError if the store can't be at `url`.

    refuse_unpriced: what hard budgets do with calls that can't be priced. on_passed: told of each threshold that was
    passed, once among all workers. clock_ms: monotonic; wall_ns: since 1970.
    """

    def __init__(
        self,
        url: str,
        *,
        loop: asyncio.AbstractEventLoop,
        refuse_unpriced: bool = True,
        on_passed: Callable[[Passed], None] = lambda _passed: None,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // NS_PER_MS,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._links = Links(
            url, on_up=self._came_up, on_down=self._went_down, after_replies=self._after_replies
        )
        self._loop = loop
        self._refuse_unpriced = refuse_unpriced
        self._on_passed = on_passed
        self._clock_ms = clock_ms
        self._wall_ns = wall_ns
        self._script = lua("limits_sums") + lua("limits")
        self._counting = lua("workers")
        self._sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._writer = ""
        self._desks: dict[str, Desk] = {}
        self._shares: dict[str, Share] = {}
        self._due: dict[Desk, None] = {}  # to be heard at the end of this turn
        self._lazy: dict[
            Desk, int
        ] = {}  # … some ms later, if they have sent no other message than this by then
        self._ripe: dict[Desk, int] = {}  # … of these, those that go at the next look
        self._outcome = Outcome()
        self._answers = self._outcome.answers
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._down_ms: dict[Link, int] = {}  # since when
        self._unready: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._began_ms = self._read_ms = 0
        self._beat_ms = self._count_ms = 0  # when the next ones are due
        self.workers = 1

    # Its life

    def use(self, tenants: Mapping[str, TenantTerms]) -> None:
        """Go on with these limits, of all tenants that have any; at any time."""
        for name, desk in self._desks.items():
            desk.use(tenants.get(name, TenantTerms()))
        for name, terms in tenants.items():
            if terms.any and name not in self._desks:
                self._desks[name] = Desk(name, terms)
        if self._writer and self._desks and self._task is None:
            self._start()

    def begin(self, writer: str) -> None:
        """From now on this worker's lines go to this writer's journal."""
        self._writer = writer
        for desk in self._desks.values():
            desk.begin()
        if self._desks and self._task is None:
            self._start()

    def _start(self) -> None:
        self._began_ms = self._clock_ms()
        self._links.start()
        self._task = asyncio.create_task(self._run(), name="limiter")

    async def opened(self) -> None:
        """Return once the store can be asked, or it is clear that it is away."""
        loop = self._loop
        deadline_s = loop.time() + OPEN_S_MAX
        while self._task is not None and self.is_away and loop.time() < deadline_s:
            await asyncio.sleep(SWEEP_S / 5)

    async def close(self) -> None:
        """Take leave, and let go of the store. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._later is not None:
            self._later.cancel()
        loop = self._loop
        leaving = [
            loop.create_task(self._exchange(desk, messages.encode(desk.leave())))
            for desk in self._desks.values()
            if not desk.holds
        ]
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSE_S_MAX)
            for one in leaving:
                one.cancel()
        await self._links.close()

    @property
    def is_away(self) -> bool:
        """Can some limits not be checked now?"""
        return bool(self._desks) and (bool(self._unready) or not self._links.are_up)

    def warnings(self) -> list[str]:
        """What an operator should see to; the same words each time, with no address."""
        return ["limits cannot be checked now: the tenants' store_policy decides"] if self.is_away else []

    # What calls do

    def applies(self, principal: Principal, model: str) -> bool:
        """Is there any limit that such a call is held to?"""
        desk = self._desks.get(principal.tenant)
        return desk is not None and bool(desk.group(principal.project, principal.key_id, model).scopes)

    def ask(self, wish: Wish, answered: Callable[[Answer], None]) -> Ask:
        """Ask for a call to be admitted. `answered` is called later, never from within, unless it is given up before.

        Only for calls that some limit `applies` to.
        """
        desk = self._desks[wish.tenant]
        if wish.hold_pusd is None and self._refuse_unpriced:
            ask = ask_of(wish, desk.group(wish.project, wish.key_id, wish.model), answered)
            if ask.has_hard_budget:
                self._answers.append((ask, unpriced(ask)))
                self._schedule()
                return ask
        ask = desk.ask(wish, answered)
        self._due[desk] = None
        self._schedule()
        return ask

    def give_up(self, ask: Ask) -> None:
        """The client has left, before there was an answer, or before the admitted line."""
        desk = self._desks[ask.wish.tenant]
        now_ms = self._clock_ms()
        desk.give_up(ask, now_ms)
        if isinstance(ask.answer, Granted) and ask.answer.shared is not None:
            self._shares[desk.tenant].give_up(ask.answer.shared, now_ms)
        self._say_later(desk)

    def settle(self, granted: Granted, *, cost_pusd: int | None, tokens: int, seq: int | None) -> None:
        """The call has its record, at `seq` of this worker's journal: it took so many tokens, and cost so much.

        seq None: it will not be folded.
        """
        desk, now_ms = self._desks[granted.tenant], self._clock_ms()
        desk.settle(granted, now_ms, cost_pusd=cost_pusd or 0, tokens=tokens, seq=seq)
        if granted.shared is not None:
            self._shares[granted.tenant].settle(
                granted.shared, now_ms, cost_pusd=cost_pusd or 0, tokens=tokens
            )
        self._say_later(desk)

    def failed(self, granted: Granted, *, cost_pusd: int | None = None, seq: int | None = None) -> None:
        """The call has its record and got nothing: what it took of rates it gives back."""
        desk, now_ms = self._desks[granted.tenant], self._clock_ms()
        desk.failed(granted, now_ms, cost_pusd=cost_pusd or 0, seq=seq)
        if granted.shared is not None:
            self._shares[granted.tenant].settle(granted.shared, now_ms, cost_pusd=cost_pusd or 0, tokens=0)
        self._say_later(desk)

    def folded(self, tenant: str, seq: int) -> None:
        """This worker's records of a tenant up to `seq` are in the ledger."""
        desk = self._desks.get(tenant)
        if desk is not None and desk.folded(seq):
            self._say_later(desk)

    # Messages

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._flush()
        self._hand_out()

    def _say_later(self, desk: Desk) -> None:
        self._lazy[desk] = desk.number
        if self._later is None:
            self._later = self._loop.call_later(LATER_S, self._say_lazy)

    def _say_lazy(self) -> None:
        self._later = None
        self._due |= {desk: None for desk, number in self._ripe.items() if desk.number == number}
        self._ripe, self._lazy = self._lazy, {}
        if self._ripe:
            self._later = self._loop.call_later(LATER_S, self._say_lazy)
        self._turn()

    def _flush(self) -> None:
        """Send a message of each desk that is due, and has none under way."""
        if not self._due:
            return
        due, self._due = self._due, {}
        links: dict[Link, None] = {}
        now = era(self._wall_ns())
        for desk in due:
            if desk.under_way is not None:
                continue  # it goes on when that is answered
            link = self._links.of(desk.tenant)
            if link is None or not link.up:
                self._stranded(desk, link)
            elif self._say(desk, link, now):
                links[link] = None
        for link in links:
            link.flush()

    def _say(self, desk: Desk, link: Link, now: Era, *, beat: bool = False) -> bool:
        message = desk.message(now, beat=beat)
        if message is None:
            return False
        said = messages.encode(message)
        link.send(self._eval(desk, said), functools.partial(self._replied, desk, message, said))
        return True

    def _eval(self, desk: Desk, said: bytes, script: str | None = None) -> bytes:
        if script is not None:
            return command("EVAL", script, *self._keys_and_writer(desk), said)
        windows, head = desk.heads.get(desk.has_budgets, (None, b""))
        if windows is not desk.windows:
            head = command("EVALSHA", self._sha, *self._keys_and_writer(desk), b"")
            head = head[: -len(b"$0\r\n\r\n")]
            desk.heads[desk.has_budgets] = desk.windows, head
        return b"".join((head, b"$%d\r\n" % len(said), said, b"\r\n"))

    def _keys_and_writer(self, desk: Desk) -> list[str]:
        tag = f"wb:1:{{{desk.tenant}}}"
        keys = [f"{tag}:meta", f"{tag}:l", f"{tag}:lw", f"{tag}:l:{self._writer}"]
        if desk.has_budgets:
            keys += [f"{tag}:b:{window}" for window in desk.windows]
        return [str(len(keys)), *keys, self._writer]

    def _replied(self, desk: Desk, message: Message, said: bytes, reply: Any) -> None:
        if desk.under_way is not message:  # it was given up since
            return
        if type(reply) is not bytes:
            self._not_answered(desk, message, said, reply)
            return
        try:
            answer = messages.decode(reply)
        except msgspec.MsgspecError as error:
            self._broken(desk, str(error))
            return
        status, outcome = answer.status, self._outcome
        if status and status == Status.FORM:
            self._broken(desk, "its keys hold what is none of ours")
            return
        if not self._read_ms:
            self._read_ms = self._clock_ms()  # once for all that is read at once
        desk.taken(answer, self._read_ms, self._wall_ns, outcome)
        if outcome.again or outcome.unjudged or outcome.passed:
            self._see_to(desk, outcome)
        if status or self._unready or self._shares:
            self._heard(desk, message, status)
        if desk.waiting:
            self._due[desk] = None
        elif desk.wants:
            self._say_later(desk)

    def _not_answered(self, desk: Desk, message: Message, said: bytes, reply: Any) -> None:
        """There came something else than an answer."""
        if isinstance(reply, hiredis.ReplyError):
            self._refused_by_store(desk, message, said, str(reply))
        elif reply is LOST:
            desk.lost()
            self._due[desk] = None
        else:
            self._broken(desk, "its script answers with what is none of ours")

    def _heard(self, desk: Desk, message: Message, status: int) -> None:
        """The store has said that it knows enough of this tenant, or not, or that it lacks what was said before."""
        if status == Status.UNREADY:
            self._unready.add(desk.tenant)
        elif status != Status.TAKEN:
            self._due[desk] = None
        elif message.asks or message.kind == Kind.LOOK:
            self._unready.discard(desk.tenant)
            if desk.tenant in self._shares:
                self._shares[desk.tenant].end()

    def _see_to(self, desk: Desk, outcome: Outcome) -> None:
        """What came of a message besides admissions."""
        if outcome.again:
            self._loop.call_later(AGAIN_MS / 1_000, self._ask_again, desk, [*outcome.again])
            outcome.again.clear()
        if outcome.unjudged:
            self._decide(desk, outcome.unjudged)
            outcome.unjudged.clear()
        for passed in outcome.passed:
            self._claim(desk, passed)
        outcome.passed.clear()

    def _ask_again(self, desk: Desk, asks: Iterable[Ask]) -> None:
        desk.again(asks)
        self._due[desk] = None
        self._turn()

    def _refused_by_store(self, desk: Desk, message: Message, said: bytes, error: str) -> None:
        link = self._links.of(desk.tenant)
        if error.startswith("NOSCRIPT") and link is not None and link.up:
            again = functools.partial(self._replied, desk, message, said)
            link.send(self._eval(desk, said, self._script), again)
            link.flush()
            return
        if error.startswith(("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN")):
            self._links.moved()
        self._broken(desk, error.partition(" ")[0])

    def _broken(self, desk: Desk, reason: str) -> None:
        """The store cannot answer for this tenant now; it is asked again at the next beat."""
        if desk.tenant not in self._unready:
            log(logger, logging.ERROR, "limits cannot be checked", tenant=desk.tenant, reason=reason)
        self._unready.add(desk.tenant)
        self._decide(desk, desk.unjudged())

    def _after_replies(self) -> None:
        self._read_ms = 0
        self._flush()
        self._hand_out()

    def _hand_out(self) -> None:
        while self._answers:
            answers = [*self._answers]
            self._answers.clear()
            for ask, answer in answers:
                if ask.given_up:
                    continue
                try:
                    ask.answered(answer)
                except Exception as error:  # noqa: BLE001  one call's fault must not keep the others from their answers
                    context = {"message": "limiter: a call failed at its answer", "exception": error}
                    self._loop.call_exception_handler(context)

    # While the store cannot say

    def _stranded(self, desk: Desk, link: Link | None) -> None:
        """Calls wait a moment for the connection to come back; then the policy decides."""
        since_ms = self._began_ms if link is None else self._down_ms.get(link, self._began_ms)
        if desk.waits and self._clock_ms() - since_ms > GRACE_MS:
            self._decide(desk, desk.unjudged())
        for seen in desk.seen():
            seen()

    def _decide(self, desk: Desk, asks: list[Ask]) -> None:
        now_ms = self._clock_ms()
        for ask in asks:
            answer: Answer
            if desk.terms.policy == "closed":
                answer = refusal(ask, CANNOT, RETRY_MS)
            elif desk.terms.policy == "open":
                answer = desk.grant_unjudged(ask)
            else:
                answer = self._share(desk).judge(ask, now_ms, self._wall_ns)
            self._answers.append((ask, answer))

    def _share(self, desk: Desk) -> Share:
        share = self._shares.get(desk.tenant)
        if share is None:
            share = self._shares[desk.tenant] = Share(desk)
        share.divide(self.workers)
        return share

    def _came_up(self, link: Link) -> None:
        self._down_ms.pop(link, None)
        now = era(self._wall_ns())
        for desk in self._desks.values():
            if self._links.of(desk.tenant) is link and desk.under_way is None and (desk.wants or desk.holds):
                self._say(desk, link, now, beat=True)
        self._count_workers()

    def _went_down(self, link: Link) -> None:
        self._down_ms[link] = self._clock_ms()
        self._links.moved()

    # Again and again

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self._round()
            except Exception as error:  # noqa: BLE001  our own mistake in one round must not be the last round
                log(logger, logging.ERROR, "fault in a round", error=repr(error))

    def _round(self) -> None:
        now_ms = self._clock_ms()
        for link in self._links.all:
            link.sweep(now_ms)
            if not link.up:
                self._down_ms.setdefault(link, now_ms)
        self._due |= {desk: None for desk in self._desks.values() if desk.waits}
        if now_ms >= self._beat_ms:
            self._beat_ms = now_ms + BEAT_MS
            self._beat()
        if now_ms >= self._count_ms:
            self._count_ms = now_ms + COUNT_MS
            self._count_workers()
        self._turn()

    def _beat(self) -> None:
        now = era(self._wall_ns())
        for desk in self._desks.values():
            link = self._links.of(desk.tenant)
            wanted = desk.holds or desk.wants or desk.tenant in self._unready
            if wanted and desk.under_way is None and link is not None and link.up:
                self._say(desk, link, now, beat=True)
        for link in self._links.all:
            link.flush()

    def _count_workers(self) -> None:
        """Say that this worker lives, and hear how many do."""
        link = self._links.of(WORKERS_KEY)
        if link is not None and link.up:
            link.send(command("EVAL", self._counting, "1", WORKERS_KEY, self._writer), self._counted)
            link.flush()

    def _counted(self, reply: Any) -> None:
        if isinstance(reply, int):
            self.workers = max(1, reply)

    def _claim(self, desk: Desk, passed: Passed) -> None:
        """Tell of a threshold, if nobody has told of it yet."""
        link = self._links.of(desk.tenant)
        if link is None or not link.up:
            return
        kind = "hard" if passed.budget.hard else "soft"
        field = f"told|{passed.scope}|{kind}|{passed.budget.pusd}|{passed.percent}"
        key = f"wb:1:{{{desk.tenant}}}:b:{passed.window}"

        def claimed(reply: Any) -> None:
            if reply == 1:
                self._on_passed(passed)

        link.send(command("HSETNX", key, field, self._writer), claimed)
        link.flush()

    async def _exchange(self, desk: Desk, said: bytes) -> None:
        """Send a message that no call waits for, and wait for its answer."""
        link = self._links.of(desk.tenant)
        if link is not None and link.up:
            await link.ask(self._eval(desk, said))

    def rates(self, principal: Principal, model: str) -> tuple[Rate | None, Rate | None]:
        """The tightest limits of requests and of tokens that such a call is held to, as they were heard of last."""
        desk = self._desks.get(principal.tenant)
        if desk is None:
            return None, None
        now_ms = self._clock_ms()
        requests, tokens = [], []
        for scope in desk.scopes(principal.project, principal.key_id, model):
            per_minute = scope.requests_per_minute
            requests.append((per_minute, drained(scope.requests_debt, scope.heard.ms, now_ms, per_minute)))
            per_minute = scope.tokens_per_minute
            tokens.append((per_minute, drained(scope.tokens_debt, scope.heard.ms, now_ms, per_minute)))
        return tightest(requests), tightest(tokens)

    async def standing(self, principal: Principal, models: Iterable[str]) -> list[Scope]:
        """The scopes with limits that calls of this key to these models are in, as the store has them now.

        While it is away, as it had them last.
        """
        desk = self._desks.get(principal.tenant)
        if desk is None:
            return []
        found: dict[str, Scope] = {}
        for model in models:
            found |= {one.name: one for one in desk.scopes(principal.project, principal.key_id, model)}
        await self.heard(desk, found.values())
        return list(found.values())

    async def confirm(self) -> None:
        """Return once the store has all sums of this worker. To be awaited before it is said that it has."""
        for desk in list(self._desks.values()):
            if desk.holds:
                await self.heard(desk, ())

    async def heard(self, desk: Desk, scopes: Iterable[Scope]) -> None:
        """Have the store asked how scopes stand, and wait until it was, or cannot be."""
        seen = asyncio.Event()
        desk.look(scopes, seen.set)
        self._due[desk] = None
        self._turn()
        await seen.wait()


def unpriced(ask: Ask) -> Refused:
    """A hard budget does not take what may cost anything."""
    return refusal(
        ask, "a hard budget, which takes no call that cannot be priced beforehand", None, of_budget=True
    )
