"""What happens to a call, made of a seed and played to any side: driven.py's or driver_model.py's."""

import random
from typing import Any

from backends.errors import BackendDisconnected, BackendError
from gateway.calls.events import State
from tests.support.driven import Direct, Plain
from tests.support.driver_fakes import Seen
from tests.support.driver_model import Modelled
from tests.support.machine import NO_ROOM

Side = Direct | Plain | Modelled


class Script:
    """What happens to a call, made of a seed: the same for each side that behaves the same.

    answers: backend → status, headers, body, does it close. size: of a backend's writes. rate: of what goes wrong.
    whole: answers that end come in one read.
    """

    def __init__(self, rng: random.Random, answers: Any, size: int, rate: float, *, whole: bool) -> None:
        self._rng = rng
        self._answers = answers
        self._size = size
        self._rate = rate
        self._whole = whole
        self._said = 0

    def play(self, side: Side, losses: list[BackendError]) -> Seen:
        """The whole call; what can be done to it after its end changes nothing."""
        steps = 0
        try:
            while not side.finished:
                steps += 1
                assert steps < 20_000, "it never ends"
                if self._rng.random() < (0.3 if side.asking else self._rate):  # that is one step of many
                    self._disaster(side, losses)
                else:
                    self._go_on(side)
                side.settle()
                side.check()
            if not side.gone:
                side.take(True)
                side.settle()
                side.check()
            seen = side.seen(steps)
            side.check_books()
            if not side.gone:
                side.leave()
                side.settle()
            assert (side.seen(steps).body, side.seen(steps).lines) == (seen.body, seen.lines)
        finally:
            side.close()
        return seen

    def _go_on(self, side: Side) -> None:
        if side.asking:
            side.answer(None)
        elif side.made:
            side.flush()
        elif side.unwritten:
            side.make()
        elif side.paused:
            if self._rng.random() < 0.5:
                side.take(True)
            else:
                side.tick(to_the_end=self._rng.random() < 0.1)
        elif side.attempt:
            self._speak(side)
        else:
            side.tick(to_the_end=False)

    def _speak(self, side: Side) -> None:
        answer = self._answers[side.backend]
        state = side.call.state
        if state is State.CONNECTING:
            self._said = 0
            side.say("connected")
        elif state is State.WAITING:
            if self._whole and answer.closes:
                side.say("whole", answer.status, answer.headers, answer.body)
            else:
                side.say("head", answer.status, answer.headers)
        elif piece := answer.body[self._said : self._said + self._size]:
            self._said += len(piece)
            side.say("data", piece)
        elif answer.closes:
            side.say("end")
        else:
            side.say("lost", BackendDisconnected(side.backend, "disconnected"))

    def _disaster(self, side: Side, losses: list[BackendError]) -> None:
        kind = self._rng.choice(
            ["leave", "stop", "lost", "fail", "tick", "tick", "grant", "slow", "slow", "take", "refuse"]
        )
        match kind:
            case "leave" if not side.gone:
                side.leave()
            case "stop":
                side.stop()
            case "refuse" if side.asking:
                side.answer(NO_ROOM)
            case "lost" if side.attempt and not side.paused:
                side.say("lost", self._rng.choice(losses))
            case "fail" if side.unwritten:
                side.fail()
            case "tick":
                side.tick(to_the_end=self._rng.random() < 0.1)
            case "grant" if side.waiting:
                side.grant(self._rng.choice(side.waiting))
            case "slow" if not side.gone:
                side.take(False)
            case "take" if not side.gone:
                side.take(True)
