"""What becomes of lines that no journal takes."""

import asyncio
import logging
from typing import Any

import pytest

from metering.journal import chain
from metering.journal.unwritten import Shown, Unwritable
from metering.record import CallRecord, Line
from tests.support import journals

ERROR = OSError(5, "Input/output error")


class Waiter:
    def __init__(self, make: journals.Make) -> None:
        self.make = make
        self.asked: list[tuple[int, str]] = []
        self.seen: list[str] = []

    def line(self, seq: int, prev: str) -> Line:
        self.asked.append((seq, prev))
        return self.make(seq, prev)

    def written(self) -> None:
        self.seen.append("written")

    def failed(self, error: OSError) -> None:
        self.seen.append(f"failed: {error.strerror}")


def test_with_stop_nobody_goes_on() -> None:
    async def scenario() -> None:
        journal = Unwritable("w" + "a" * 16, ERROR, None, loop=asyncio.get_running_loop())
        waiter = Waiter(journals.call("c"))
        journal.append(waiter)
        assert waiter.seen == [], "nothing from within append"
        journal.note(journals.tick())
        await asyncio.sleep(0)
        assert (waiter.seen, waiter.asked) == (["failed: Input/output error"], [])
        made = Waiter(journals.call("d"))
        journal.give_up_made(made, made.make(7, "0" * 64))
        assert made.seen == ["failed: Input/output error"]
        assert (journal.ended, journal.has_room(), journal.dead) == (True, False, ERROR)
        with pytest.raises(OSError, match="Input/output"):
            await journal.tell(journals.tick())

    asyncio.run(scenario())


def test_with_continue_each_line_is_counted_and_shown_whole(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        journal = Unwritable("w" + "a" * 16, ERROR, Shown(counted.append), loop=loop)
        assert [journal.next_call_id() for _ in range(2)] == [f"w{'a' * 16}-1", f"w{'a' * 16}-2"]
        waiter = Waiter(journals.call("c"))
        journal.append(waiter)
        journal.note(journals.tick())
        await asyncio.sleep(0)
        assert (waiter.seen, waiter.asked) == (["written"], [(0, chain.ZEROS)])
        made = Waiter(journals.call("d"))
        journal.give_up_made(made, made.make(7, "f" * 64))
        assert (made.seen, made.asked) == (["written"], []), "an entry is asked for its line once"
        await journal.tell(journals.refused())
        assert (journal.ended, journal.has_room()) == (False, True)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert counted == ["call", "tick", "call", "refused"]
    shown: list[Any] = [record.__dict__["weighbridge_facts"]["line"] for record in caplog.records]
    assert [(line["kind"], line["seq"]) for line in shown] == [
        ("call", 0),
        ("tick", 0),
        ("call", 7),
        ("refused", 0),
    ]
    whole = journals.call("c")(0, chain.ZEROS)
    assert isinstance(whole, CallRecord)
    assert shown[0].keys() == set(whole.__struct_fields__) - {"capture"}  # which only few records have
