"""The recorder's checkpoints: when they come, and that each signs just the lines before it."""

import json
import pathlib
import random

import pytest

from metering.audit import endnotes, notary
from metering.audit.notary import Notary, Signed
from metering.journal import pace, recorder
from metering.record import Event
from metering.units import NS_PER_HOUR
from tests.metering.journal.test_recorder import run, turn, world
from tests.support import journals, noteoracle, signing
from tests.support.journals import AT_NS, WRITER

VKEY = signing.signer().verifier.vkey


def kinds(directory: pathlib.Path) -> list[str]:
    return [json.loads(line)["kind"] for line in noteoracle.lines(directory)]


def test_a_checkpoint_comes_with_the_turn_after_a_thousand_lines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_LINES", 10)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            for _ in range(40):
                await w.append_all(*[journals.tick()] * 3)
            assert len(set(w.journal.writes)) == 41, "it costs no write of its own"
        seqs = noteoracle.check(tmp_path / WRITER, VKEY)
        # After `start` and three turns 10 lines are unsigned; then the checkpoint and four turns are 13 lines.
        assert seqs == [11, *range(24, 130, 13), len(kinds(tmp_path / WRITER)) - 1]

    run(scenario)


def test_a_longer_turn_is_signed_by_the_next_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_LINES", 10)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.append_all(*[journals.tick()] * 700)
            await w.append_all(journals.tick())
        assert noteoracle.check(tmp_path / WRITER, VKEY) == [702, 704]

    run(scenario)


def test_each_tick_has_one_before_it(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for minute in range(3):
                w.now_ns = AT_NS + minute * recorder.TICK_NS
                w.recorder._timers["tick"].cancel()
                w.recorder._tick(w.now_ns)
                await turn()
        assert kinds(tmp_path / WRITER) == ["start", *["checkpoint", "tick"] * 3, "checkpoint", "stop"]
        noteoracle.check(tmp_path / WRITER, VKEY)

    run(scenario)


def test_a_segment_ends_with_one_and_a_new_hours_tick_begins_one(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for hour in range(1, 4):
                w.now_ns = AT_NS + hour * NS_PER_HOUR
                w.recorder._timers["tick"].cancel()
                w.recorder._tick(w.now_ns)
                await turn()
        segments = [path.read_bytes().splitlines() for _, path in w.directory().segment_paths()]
        ends = [[json.loads(line)["kind"] for line in (lines[0], lines[-1])] for lines in segments]
        assert ends == [["start", "checkpoint"], *[["tick", "checkpoint"]] * 2, ["tick", "stop"]]
        assert kinds(tmp_path / WRITER).count("checkpoint") == 4
        noteoracle.check(tmp_path / WRITER, VKEY)

    run(scenario)


@pytest.mark.parametrize("slow", [False, True])
def test_every_segment_that_is_full_ends_with_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    if slow:
        monkeypatch.setattr(pace, "SLOW_WRITE_NS", 0)
        monkeypatch.setattr(pace, "QUICK_WRITES", 10**9)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal._segment_bytes_max = 2_000
            for n in range(60):
                waiters = await w.append_all(journals.admitted(f"c{n}"), journals.call(f"c{n}"))
                await w.until(lambda: all(waiter.seen == ["written"] for waiter in waiters))  # noqa: B023
        paths = [path for _, path in w.directory().segment_paths()]
        assert len(paths) > 10
        last = [json.loads(path.read_bytes().splitlines()[-1])["kind"] for path in paths]
        assert last == ["checkpoint"] * (len(paths) - 1) + ["stop"]
        noteoracle.check(tmp_path / WRITER, VKEY)

    run(scenario)


def test_a_line_that_could_not_be_made_is_not_signed(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.append_all(
                journals.tick(), lambda seq, prev: journals.tick()(seq + 1, prev), journals.tick()
            )
        assert noteoracle.check(tmp_path / WRITER, VKEY) == [4]

    run(scenario)


def test_with_calls_open_there_is_neither_stop_nor_note(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.append_all(journals.admitted("a"))
        assert not (tmp_path / WRITER / endnotes.END_NOTE).exists()

    run(scenario)


def test_what_is_signed_is_told_once_it_is_written_and_the_end_last(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        told: list[tuple[Signed, int]] = []
        async with world(tmp_path) as w:
            w.recorder.on_checkpoint(lambda signed: told.append((signed, w.recorder.seq)))
            await w.append_all(journals.tick())
        assert [(signed.head.size, seq) for signed, seq in told] == [(2, 4), (4, 4)]
        note = (tmp_path / WRITER / endnotes.END_NOTE).read_text()
        assert note == told[-1][0].note
        assert noteoracle.read(note, VKEY).size == 4

    run(scenario)


def test_a_note_that_cannot_be_left_stops_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(endnotes, "write", fails)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            pass
        assert w.directory().complete
        assert w.died == []
        assert "end of the journal not signed" in caplog.text
        assert not (tmp_path / WRITER / endnotes.END_NOTE).exists()

    run(scenario)


def test_a_journal_that_cannot_be_written_signs_nothing_more(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal.fails = True
            w.recorder._to_sign = True
            await w.append_all(journals.tick())
            w.recorder._to_sign = True
            w.recorder._flush()
        assert kinds(tmp_path / WRITER) == ["start"]

    run(scenario)


def event(seq: int, prev: str) -> Event:
    return Event(actor=None, at_ns=AT_NS, data={}, prev=prev, seq=seq, topic="key")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_change_of_keys_is_signed_by_the_old_one_if_it_may(tmp_path: pathlib.Path, at_once: bool) -> None:
    old, new = signing.signer(1).verifier, signing.signer(2).verifier

    async def scenario() -> None:
        async with world(tmp_path) as w:
            signed: list[str] = []
            w.recorder.on_checkpoint(lambda one: signed.append(one.key_id))
            w.recorder.change_key(signing.key(2), event, at_once=at_once)
            await w.until(lambda: w.recorder.seq == 3)
            assert kinds(tmp_path / WRITER) == ["start", "event", "checkpoint"], "it is not waited for"
            await w.append_all(journals.tick())
        first = new if at_once else old
        assert signed == [one.key_id.hex() for one in (first, new, new)]
        assert noteoracle.check(tmp_path / WRITER, old.vkey, new.vkey) == [3, 5]

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_whatever_turns_each_checkpoint_signs_all_before_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Turns of any length, hours that end, small segments, ticks, new keys, a disk that is slow at times."""
    rng = random.Random(seed)
    monkeypatch.setattr(recorder, "CHECKPOINT_LINES", rng.choice([5, 40, 1_000]))
    monkeypatch.setattr(pace, "SLOW_WRITE_NS", rng.choice([0, pace.SLOW_WRITE_NS]))
    monkeypatch.setattr(pace, "QUICK_WRITES", 3)
    vkeys = [signing.signer(number).verifier.vkey for number in range(1, 60)]

    async def scenario() -> None:
        async with world(tmp_path, fsync=rng.choice(["always", "interval"])) as w:
            w.journal._segment_bytes_max = rng.choice([500, 5_000, 1 << 20])
            for number in range(2, 60):
                match rng.randrange(6):
                    case 0:
                        w.now_ns += rng.randrange(NS_PER_HOUR)
                    case 1:
                        w.recorder._to_sign = True
                        w.recorder.note(journals.tick())
                    case 2:
                        w.recorder.change_key(signing.key(number), event, at_once=rng.random() < 0.5)
                    case _:
                        await w.append_all(*[journals.tick()] * rng.randrange(30))
        assert w.reports == []
        assert w.directory().complete
        seqs = noteoracle.check(tmp_path / WRITER, *vkeys)
        begun = [first_seq for first_seq, _ in w.directory().segment_paths()]
        assert {first_seq - 1 for first_seq in begun[1:]} <= set(seqs), "a segment's last line signs it"
        assert kinds(tmp_path / WRITER)[-2:] == ["checkpoint", "stop"]

    run(scenario)


def test_it_is_found_where_a_checkpoint_signs_another_number_of_lines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a tree that is one turn behind."""
    add, late = Notary.add, [[]]  # type: ignore[var-annotated]

    def add_late(one: Notary, leaves: list[str]) -> None:
        late.append(list(leaves))
        add(one, late.pop(0))

    monkeypatch.setattr(Notary, "add", add_late)
    monkeypatch.setattr(
        Notary, "size", property(lambda one: one._tree.size + len(one._leaves) + len(late[0]))
    )
    with pytest.raises(AssertionError):
        test_each_tick_has_one_before_it(tmp_path)


def test_it_is_found_where_no_note_is_left(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endnotes, "write", lambda *_: None)
    with pytest.raises(FileNotFoundError):
        test_what_is_signed_is_told_once_it_is_written_and_the_end_last(tmp_path)


def test_no_turn_takes_in_more_than_a_chunk_and_its_own_lines(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for _ in range(100):
                await w.append_all(*[journals.tick()] * 10)
                assert len(w.recorder._notary._leaves) < notary.CHUNK_LEAVES

    run(scenario)
