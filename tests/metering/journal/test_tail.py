"""The lines of all writers as they come: none twice, none left out, over rotation, sealing, salvage and new writers."""

import pathlib
from typing import Any

import msgspec

from metering.journal import journal, sealing
from metering.journal.journal import Directory, Journal
from metering.journal.tail import Tail, Wanted, kind_of, text
from metering.record import Event, Registration
from tests.support import journals
from tests.support.journals import AT_NS

FIRST, SECOND = "w" + "a" * 16, "w" + "b" * 16
HOUR = 490_896


class Writing:
    """A live journal."""

    def __init__(self, root: pathlib.Path, writer: str = FIRST) -> None:
        self.journal = Journal.create(root, writer=writer, segment_bytes_max=1 << 20)
        self.seq, self.leaf = 0, "0" * 64

    def add(self, *makes: Any, hour: int = HOUR) -> None:
        lines = journals.encoded(makes, self.seq, self.leaf)
        self.journal.write(b"".join(lines), self.seq + 1, hour)
        self.seq += len(lines)
        self.leaf = journal.chain.leaf(lines[-1][:-1])


def seqs(told: Any) -> list[tuple[str, int]]:
    return [(one.writer[1], one.line.seq) for one in told]


def test_the_last_lines_by_time_and_then_what_comes(tmp_path: pathlib.Path) -> None:
    one, two = Writing(tmp_path), Writing(tmp_path, SECOND)
    one.add(journals.start(), journals.tick(at_ns=AT_NS + 2), journals.tick(at_ns=AT_NS + 4))
    two.add(journals.start(), journals.tick(at_ns=AT_NS + 3))
    tail = Tail(tmp_path, Wanted())
    assert seqs(tail.last(3)) == [("a", 2), ("b", 2), ("a", 3)]
    assert list(tail.more()) == []
    two.add(journals.admitted("c"))
    assert seqs(tail.more()) == [("b", 3)]
    one.add(journals.tick(), journals.tick(), hour=HOUR + 1)
    one.add(journals.tick(), hour=HOUR + 2)
    assert seqs(tail.more()) == [("a", 4), ("a", 5), ("a", 6)]
    third = Writing(tmp_path, "w" + "c" * 16)
    third.add(journals.start())
    assert seqs(tail.more()) == [("c", 1)]
    one.add(journals.stop())
    assert seqs(tail.more()) == [("a", 7)]
    assert list(tail.more()) == []
    for each in (one, two, third):
        each.journal.close()
    tail.close()


def test_half_a_line_is_waited_for(tmp_path: pathlib.Path) -> None:
    path = journals.write_directory(tmp_path, [journals.start()])
    (line,) = journals.encoded([journals.tick()], 1, Directory(path).tail().leaf)
    tail = Tail(tmp_path, Wanted())
    assert len(tail.last(9)) == 1
    with open(path / journal.segment_name(1), "ab", buffering=0) as file:
        file.write(line[:20])
        assert list(tail.more()) == []
        file.write(line[20:])
        assert seqs(tail.more()) == [("a", 2)]
    tail.close()


def test_a_segment_may_be_sealed_and_a_writer_die_meanwhile(tmp_path: pathlib.Path) -> None:
    one = Writing(tmp_path)
    one.add(journals.start(), journals.admitted("c"))
    tail = Tail(tmp_path, Wanted())
    assert len(tail.last(9)) == 2
    one.add(journals.tick())
    one.add(journals.tick(), hour=HOUR + 1)
    one.add(journals.tick(), hour=HOUR + 2)
    for first_seq in (1, 4):  # all but the last are sealed before they were read to their end
        sealing.seal(one.journal.path / journal.segment_name(first_seq))
    assert seqs(tail.more()) == [("a", 3), ("a", 4), ("a", 5)]
    one.journal.close()
    assert [closed.lost for closed in journal.salvage_dead(tmp_path)] == [1]
    assert [(told.line.seq, kind_of(told.line)) for told in tail.more()] == [(6, "call"), (7, "stop")]
    assert list(tail.more()) == []


def test_lines_are_chosen_by_kind_and_tenant(tmp_path: pathlib.Path) -> None:
    makes = [
        journals.start(),
        journals.admitted("c"),
        journals.call("c"),
        journals.refused(),
        journals.stop(),
    ]
    journals.write_directory(tmp_path, makes)

    def kinds(**wanted: Any) -> list[str]:
        return [kind_of(told.line) for told in Tail(tmp_path, Wanted(**wanted)).last(9)]

    assert kinds() == ["start", "admitted", "call", "refused", "stop"]
    assert kinds(kinds=frozenset({"call", "stop"})) == ["call", "stop"]
    assert kinds(tenant="acme") == ["admitted", "call"]
    assert kinds(tenant="globex") == []


def test_each_line_is_told_in_short(tmp_path: pathlib.Path) -> None:
    def event(seq: int, prev: str) -> Event:
        return Event(actor=None, at_ns=AT_NS, data={"step_ms": "5"}, prev=prev, seq=seq, topic="clock")

    def asked(seq: int, prev: str) -> Event:
        return msgspec.structs.replace(event(seq, prev), actor="k1")

    def registration(seq: int, prev: str) -> Registration:
        return Registration(
            at_ns=AT_NS, backend="a", instance_id="i-1", prev=prev, seq=seq, source="config", state="ready"
        )

    makes = [
        journals.start(), journals.admitted("c"), journals.call("c"), journals.call("d", cost_pusd=None),
        journals.refused(), journals.tick(), event, asked, registration, journals.stop(),
    ]  # fmt: skip
    journals.write_directory(tmp_path, makes)
    said = [text(told) for told in Tail(tmp_path, Wanted()).last(10)]
    assert said == [
        f"2026-01-01T00:00:00.000Z {FIRST}#{seq} {facts}"
        for seq, facts in enumerate(
            [
                "start version=0 worker=0",
                "admitted c tenant=acme model=llama",
                "call c tenant=acme model=llama completed tokens=100+50 usd=0.000022500000",
                "call d tenant=acme model=llama completed tokens=100+50 usd=unknown",
                "refused 401 invalid_api_key tenant=unknown count=1",
                "tick open=0",
                "event clock step_ms='5'",
                "event clock actor=k1 step_ms='5'",
                "registration ready backend=a instance=i-1",
                "stop shutdown lost=0",
            ],
            1,
        )
    ]
