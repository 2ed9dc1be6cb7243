"""A gateway's copy of the directory on disk, and the one out of its journals."""

import multiprocessing
import pathlib
import stat

from metering.audit import changes
from metering.journal import chain, events, journal
from metering.ledger import directory, directory_journal
from metering.ledger.directory_file import DirectoryFile
from metering.record import DirectoryChange, Stop
from tests.metering.ledger.test_directory import entry


def test_nothing_is_there_before_the_first_entry(tmp_path: pathlib.Path) -> None:
    file = DirectoryFile(tmp_path)
    assert (file.stamp(), file.read(), file.confirmed_ns()) == (None, [], 0)


def test_it_is_joined_and_the_owners(tmp_path: pathlib.Path) -> None:
    file = DirectoryFile(tmp_path)
    file.join([entry(2)])
    first = file.stamp()
    file.join([entry(1), entry(1, name="k0")])
    assert file.read() == [directory.encode(entry(1, name="k0")), directory.encode(entry(2))]
    assert file.stamp() != first
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    second = file.stamp()
    file.join([entry(1)])
    assert file.stamp() == second


def test_it_is_confirmed_apart_from_being_written(tmp_path: pathlib.Path) -> None:
    file = DirectoryFile(tmp_path)
    file.confirm(7_000)
    file.join([entry(1)])
    assert file.confirmed_ns() == 7_000


def test_one_change_at_a_time(tmp_path: pathlib.Path) -> None:
    one, other = DirectoryFile(tmp_path), DirectoryFile(tmp_path)
    with one.change_lock_if_free() as mine:
        with other.change_lock_if_free() as theirs:
            assert (mine, theirs) == (True, False)
        one.join([entry(1)])  # the copy has a lock of its own
    with other.change_lock_if_free() as free:
        assert free


def _join_some(path: pathlib.Path, number: int) -> None:
    for version in range(1, 21):
        DirectoryFile(path).join(
            [entry(version, name=f"k{number}"), entry(version, at_ns=number, name="both")]
        )


def test_processes_lose_nothing_of_each_other(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_join_some, args=(tmp_path, number)) for number in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    wanted = [entry(20, at_ns=2, name="both"), entry(20, name="k1"), entry(20, name="k2")]
    assert DirectoryFile(tmp_path).read() == [directory.encode(one) for one in wanted]


def told(root: pathlib.Path, writer: str, *entries: directory.Entry, torn: bytes = b"") -> None:
    """A journal with a change for each of these."""
    lines: list[bytes] = []
    leaves = [chain.ZEROS]
    makers = [
        lambda seq, prev, one=one: DirectoryChange(
            actor="a1", at_ns=one.at_ns, change="set", entry=one, prev=prev, request_id=None, seq=seq
        )
        for one in entries
    ]
    makers.append(lambda seq, prev: Stop(at_ns=9, prev=prev, reason="shutdown", seq=seq))
    for make in makers:
        lines.append(chain.encode(make(len(leaves), leaves[-1])))
        leaves.append(chain.leaf(lines[-1][:-1]))
    opened = journal.Journal.create(root, writer=writer, segment_bytes_max=1 << 20)
    opened.write(b"".join(lines), 1, 0)
    opened.close()
    (segment,) = (root / writer).glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(torn)


def test_the_journals_make_it_anew(tmp_path: pathlib.Path) -> None:
    told(tmp_path, "w" + "a" * 16, entry(1), entry(3, revoked=True))
    told(
        tmp_path,
        "w" + "b" * 16,
        entry(2, name="k2"),
        entry(9),
        torn=b'{"kind":"directory"}\n{"kind":"directory"',
    )
    copy = directory.Copy()
    copy.take(directory_journal.entries(tmp_path))
    assert [(one.name, one.version, one.revoked) for one in copy.entries("key")] == [
        ("k1", 9, True),
        ("k2", 2, False),
    ]
    assert list(directory_journal.entries(tmp_path / "absent")) == []


def test_a_change_is_listed_with_what_else_happened(tmp_path: pathlib.Path) -> None:
    told(tmp_path, "w" + "a" * 16, entry(1, at_ns=5), entry(2, at_ns=6, revoked=True))
    page = changes.page(tmp_path, from_ns=0, to_ns=100, topic="directory", count=10)
    first, second = (one.event for one in page.changes)
    assert (first.topic, first.actor, first.at_ns) == ("directory", "a1", 5)
    assert first.data == {
        "change": "set", "kind": "key", "name": "k1", "version": "1", "entry": '{"mark": "a"}',
    }  # fmt: skip
    assert second.data["revoked"] == "true"
    assert changes.page(tmp_path, from_ns=0, to_ns=100, topic="config", count=10).changes == []


def test_a_line_of_it_reads_as_its_kind() -> None:
    line = DirectoryChange(
        actor="a1", at_ns=1, change="create", entry=entry(1), prev=chain.ZEROS, request_id="r1", seq=1
    )
    assert chain.decode(chain.encode(line)) == line
    assert events.directory_changed(line).data["request_id"] == "r1"
