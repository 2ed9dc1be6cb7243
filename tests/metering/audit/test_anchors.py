"""Checkpoints on their way elsewhere: only durable ones, not too often, the last one always."""

import asyncio
import os
import pathlib
import shutil
from typing import cast

import pytest

from metering.archive.objects import ArchiveError, LocalObjects
from metering.audit import anchors
from metering.audit.anchors import ANCHOR_S, ARCHIVE_S, Anchors, ArchivedAnchors, StoredAnchors
from metering.audit.endnotes import Ends
from metering.audit.notary import Signed
from metering.journal import chain
from metering.journal.journal import Journal, directories, new_writer_id, salvage_dead
from metering.ledger.store import Store
from metering.logs import FACTS
from metering.record import Checkpoint
from tests.support import journals, noteoracle, signing
from tests.support.journals import AT_NS, WRITER

VKEY = signing.signer().verifier.vkey


class Sent:
    """Anchors of a writer, and what they send."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sizes: list[int] = []
        self.anchors = Anchors([lambda signed: self.sizes.append(signed.head.size)], lambda: self.now_s)
        self._notary = signing.notary(WRITER)

    def checkpoint(self, size: int) -> Signed:
        self._notary.add(["00" * 32] * (size - self._notary.size))
        return self._notary.checkpoint(AT_NS)

    def written(self, *sizes: int) -> None:
        for size in sizes:
            self.anchors.checkpointed(self.checkpoint(size))


def test_what_power_may_take_is_not_sent() -> None:
    sent = Sent()
    sent.written(10, 20)
    sent.anchors.look()
    assert sent.sizes == []
    sent.anchors.synced(19)
    sent.anchors.look()
    assert sent.sizes == [10]


def test_the_newest_one_is_sent_at_most_each_ten_seconds() -> None:
    sent = Sent()
    for size in range(10, 60, 10):
        sent.written(size)
        sent.anchors.synced(size)
        sent.anchors.look()
    assert sent.sizes == [10]
    sent.now_s += ANCHOR_S
    sent.anchors.look()
    sent.anchors.look()
    assert sent.sizes == [10, 50]


def test_the_last_one_is_sent_at_once() -> None:
    sent = Sent()
    sent.written(10)
    sent.anchors.synced(12)
    sent.anchors.look()
    sent.written(12)  # the end's note comes when all of it is durable
    sent.anchors.look()
    assert sent.sizes == [10]
    sent.anchors.send()
    sent.anchors.send()
    assert sent.sizes == [10, 12]


def test_it_is_found_where_what_is_not_durable_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Anchors.synced
    monkeypatch.setattr(Anchors, "synced", lambda one, _seq: synced(one, 10**9))
    with pytest.raises(AssertionError):
        test_what_power_may_take_is_not_sent()


def test_the_log_has_the_whole_note(caplog: pytest.LogCaptureFixture) -> None:
    signed = Sent().checkpoint(7)
    caplog.set_level("INFO")
    anchors.log_checkpoint(signed)
    (line,) = caplog.records
    assert line.getMessage() == "journal checkpoint"
    facts = line.__dict__[FACTS]
    assert facts.keys() == {"writer", "size", "root", "key", "note"}
    assert noteoracle.read(facts["note"], VKEY).size == facts["size"] == 7
    assert facts["note"].split("\n")[2] == facts["root"]


# The store


class Kept:
    """A store that keeps anchors, as tests/integration/test_store.py shows that the real one does."""

    def __init__(self) -> None:
        self.puts: list[dict[str, str]] = []

        self.dropped: list[str] = []

    async def put_anchors(self, notes: dict[str, str]) -> None:
        self.puts.append(dict(notes))

    async def drop_anchors(self, writers: list[str]) -> None:
        self.dropped += writers


def test_each_note_is_put_once_in_each_life_of_the_store(tmp_path: pathlib.Path) -> None:
    writers = [new_writer_id(bytes([number]) * 10) for number in (1, 2, 3)]
    for writer in writers[:2]:
        live(tmp_path, writer).close()
    store = Kept()
    anchoring = StoredAnchors(cast("Store", store))

    def put(epoch: str) -> set[str]:
        asyncio.run(anchoring.put(directories(tmp_path), epoch))
        return set(store.puts[-1])

    assert put("a") == set()
    salvage_dead(tmp_path)
    list(Ends(tmp_path).sign(signing.key, AT_NS))
    (tmp_path / writers[2]).mkdir()
    (tmp_path / writers[2] / "end.note").write_text("no note")
    assert put("a") == set(writers[:2])
    assert noteoracle.read(store.puts[-1][writers[0]], VKEY).size == 4
    assert put("a") == set()
    assert put("b") == set(writers[:2])


def test_an_anchor_goes_with_its_journal_by_age_and_stays_if_that_disappeared(tmp_path: pathlib.Path) -> None:
    here, old, taken = (new_writer_id(bytes([number]) * 10) for number in (1, 2, 3))
    store = Kept()
    anchoring = StoredAnchors(cast("Store", store))

    def put(older_than_ns: int) -> list[str]:
        asyncio.run(anchoring.put(directories(tmp_path), "a", older_than_ns=older_than_ns))
        return store.dropped

    for writer, at_ns in ((here, AT_NS), (old, AT_NS), (taken, AT_NS + 1)):
        live(tmp_path, writer).close()
        salvage_dead(tmp_path)
        list(Ends(tmp_path).sign(signing.key, at_ns))
    assert put(AT_NS + 1) == []
    for writer in (old, taken):
        shutil.rmtree(tmp_path / writer)
    assert put(AT_NS + 1) == [old]
    assert put(AT_NS + 1) == [old]


# The archive


def live(root: pathlib.Path, writer: str) -> Journal:
    """A writer at work, with one checkpoint of its first two lines."""
    lines = journals.encoded([journals.start(writer=writer), journals.tick()])
    notary = signing.notary(writer)
    notary.add([chain.leaf(line[:-1]) for line in lines])
    note = notary.checkpoint(AT_NS).note

    def checkpoint(seq: int, prev: str) -> Checkpoint:
        return Checkpoint(at_ns=AT_NS, note=note, prev=prev, seq=seq)

    lines += journals.encoded([checkpoint], 2, chain.leaf(lines[-1][:-1]))
    made = Journal.create(root, writer=writer, segment_bytes_max=1 << 20)
    made.write(b"".join(lines), 1, 0)
    return made


class Bed:
    """A state directory's journals and an archive."""

    def __init__(self, tmp_path: pathlib.Path) -> None:
        self.journals = tmp_path / "journal"
        self.archive = tmp_path / "archive"
        self.objects = LocalObjects(self.archive)
        self.now_s = 0.0
        self.anchors = self.fresh()

    def fresh(self) -> ArchivedAnchors:
        return ArchivedAnchors(self.objects, self.journals, lambda: self.now_s)

    def round(self) -> list[str]:
        """Who was looked at."""
        due = list(self.anchors.due())
        for _, put in due:
            put()
        self.now_s += ARCHIVE_S
        return [writer for writer, _ in due]

    def names(self) -> list[str]:
        return [one.path for one in self.objects.list("")]


def test_the_newest_note_of_each_journal_is_put_once(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path)
    writer, other = (new_writer_id(bytes([number]) * 10) for number in (1, 2))
    with_nothing = Journal.create(bed.journals, writer=other, segment_bytes_max=1 << 20)
    made = live(bed.journals, writer)
    assert len(bed.round()) == 2
    assert bed.names() == [f"anchors/{writer}/2.note"]
    assert noteoracle.read((bed.archive / bed.names()[0]).read_text(), VKEY).size == 2
    bed.round()
    made.close()
    with_nothing.close()
    salvage_dead(bed.journals)
    list(Ends(bed.journals).sign(signing.key, AT_NS))
    bed.round()
    assert bed.names() == sorted(
        [f"anchors/{writer}/2.note", f"anchors/{writer}/4.note", f"anchors/{other}/1.note"]
    )
    assert bed.round() == [], "what has ended is not looked at again"
    bed.anchors = bed.fresh()
    assert len(bed.round()) == 2
    assert bed.round() == []
    assert len(bed.names()) == 3


def test_it_looks_once_a_minute_and_at_the_end(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path)
    live(bed.journals, WRITER).close()
    bed.round()
    bed.now_s -= 1
    assert list(bed.anchors.due()) == []
    salvage_dead(bed.journals)
    list(Ends(bed.journals).sign(signing.key, AT_NS))
    assert bed.round() == [WRITER]
    assert bed.names()[-1] == f"anchors/{WRITER}/4.note"


def test_what_another_process_has_put_stays(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path)
    live(bed.journals, WRITER).close()
    ((_, put),) = bed.anchors.due()
    bed.objects.put_new(f"anchors/{WRITER}/2.note", b"theirs")
    put()
    assert (bed.archive / "anchors" / WRITER / "2.note").read_bytes() == b"theirs"


def test_it_is_durable_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(tmp_path)
    live(bed.journals, WRITER).close()

    def fails(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(anchors, "_fdatasync", fails)
    with pytest.raises(OSError, match="Input/output"):
        bed.round()
    assert bed.names() == []
    monkeypatch.setattr(anchors, "_fdatasync", os.fsync)
    bed.round()
    assert len(bed.names()) == 1


def test_an_archive_that_is_away_is_asked_again(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path)
    live(bed.journals, WRITER).close()
    (bed.archive).write_text("in the way")
    with pytest.raises(ArchiveError):
        bed.round()
    bed.archive.unlink()
    bed.round()
    assert len(bed.names()) == 1
