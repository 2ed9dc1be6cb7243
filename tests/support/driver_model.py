"""The same call as a test world sees it, without a relay or a client: what both drivers are held against."""

from typing import Any

from gateway.api.errors import GatewayError
from gateway.calls import events as m
from gateway.calls.call import Call
from tests.support.driver_fakes import STOPPING, FakeLimits, Pipe, Seen, later
from tests.support.machine import World


class Modelled(World):
    """What the books of the test world say, under the same script; its pipe says when a backend is not read."""

    def __init__(self, call: Call, taken: list[str], names: list[str], most: int, limited: bool) -> None:
        self._limited = limited
        self._resumed = False
        self._paused = False
        self.pipe = Pipe(most, self._pause, self._resume)
        self._taken: tuple[int | None, dict[bytes, bytes], bytes] = (None, {}, b"")
        self.fates: list[tuple[str, str]] = []
        self.told: list[tuple[object, ...]] = []
        self.made_line: Any = None
        super().__init__(call, seats=dict.fromkeys(taken, 0), limited=limited)
        assert set(taken) <= set(names)

    @property
    def backend(self) -> str:
        return self.connects[-1]

    @property
    def paused(self) -> bool:
        return bool(self.attempt) and self._paused

    @property
    def taking(self) -> bool:
        return self.pipe.taking

    @property
    def made(self) -> bool:
        return self.made_line is not None

    def _pause(self) -> None:
        self._paused = True

    def _resume(self) -> None:
        self._resumed = self._resumed or self._paused
        self._paused = False

    def say(self, what: str, *args: Any) -> None:
        number = self.attempt
        if what in ("end", "whole", "lost"):
            self.fates[-1] = (self.connects[-1], "over")
        match what:
            case "connected":
                self.feed(m.Connected(number))
            case "head":
                self.feed(m.Head(number, status=args[0], headers=args[1]))
            case "data":
                self.feed(m.Data(number, data=args[0]))
            case "end":
                self.feed(m.End(number))
            case "whole":
                self.feed(m.Whole(number, status=args[0], headers=args[1], data=args[2]))
            case "lost":
                self.feed(m.Lost(number, error=args[0]))

    def answer(self, error: GatewayError | None) -> None:
        if error is None:
            self.allow()
        else:
            self.refuse()

    def make(self) -> None:
        self.made_line = self.call.admitted(2, "0" * 64) if len(self.lines) == 0 else self._record()

    def _record(self) -> Any:
        return self.call.record(2, "0" * 64, self.now_ns)

    def flush(self) -> None:
        (_, written), self.unwritten = self.unwritten[0], []
        self.lines.append(self.made_line)
        self.made_line = None
        self.feed(written)

    def fail(self) -> None:
        self.made_line = None
        self.fail_flush()

    def stop(self) -> None:
        self.feed(STOPPING)

    def tick(self, *, to_the_end: bool = False) -> None:
        self.now_ns = later(self.call, self.now_ns, to_the_end=to_the_end)
        waited, self._resumed = self._paused or self._resumed, False
        due_ns = self.call.unread_deadline_ns if waited else self.call.deadline_ns
        if due_ns is not None and self.now_ns >= due_ns:
            self.feed(m.Timer())

    def check_clock(self) -> None:
        """Its deadlines are the machine's own test's."""

    def _connect(self, action: m.Connect) -> None:
        super()._connect(action)
        self.fates.append((action.target.name, ""))

    def _abort(self, action: m.Abort) -> None:
        super()._abort(action)
        self.fates[-1] = (self.connects[-1], "aborted")

    def _connectfailed(self, action: m.ConnectFailed) -> None:
        self.told.append(("failed", action.backend))

    def _holdback(self, action: m.HoldBack) -> None:
        self.told.append(("busy", action.backend, action.retry_after_s))

    def _answered(self, action: m.Answered) -> None:
        self.told.append(("warm", action.backend))

    def _open(self, action: m.Open) -> None:
        super()._open(action)
        if self._limited and not self.gave_up:
            name, _, value = FakeLimits.LINES.strip().partition(b": ")
            self.headers[name] = value
        self.pipe.open()

    gave_up = False

    def _giveup(self, action: m.GiveUp) -> None:
        super()._giveup(action)
        self.gave_up = True

    def _write(self, action: m.Write) -> None:
        super()._write(action)
        self.pipe.write(len(action.data))

    def take(self, taking: bool) -> None:
        self.pipe.taking = taking

    def settle(self) -> None:
        self.pipe.settle()
        if self.pipe.taking and not self.gone:
            self._taken = (self.status, self.headers, self.client)

    def leave(self) -> None:
        self._resume()
        if not self.finished:
            self.feed(m.ClientGone())
        self.gone = True

    def check(self) -> None:
        """It checks as it goes."""

    def check_books(self) -> None:
        assert self.finished
        assert (self.holding, self.attempt, self.waiting, self.unwritten) == ([], 0, (), [])

    def close(self) -> None:
        """Nothing to close."""

    def seen(self, steps: int) -> Seen:
        status, headers, body = self._taken
        return Seen(
            status=status, headers=headers, body=body, ended=not self.gone,
            lines=self.lines, fates=self.fates, told=self.told,
            turned_away=[type(error).__name__ for error in self.turned_away], steps=steps,
        )  # type: ignore[arg-type]  # fmt: skip
