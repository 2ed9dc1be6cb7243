"""The journal of a command: whole, durable and like any other."""

import os
import pathlib
import re
import resource

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering.audit import endnotes, merkle
from metering.audit.checkpoint import Signer
from metering.audit.notary import SigningKey
from metering.journal import event_journal, events
from metering.journal.journal import Directory, salvage_dead
from metering.record import Event, Start, Stop

SIGNER = Signer("weighbridge-journal", Ed25519PrivateKey.from_private_bytes(bytes(32)))
KEY = SigningKey(SIGNER, 0)
TOLD = events.exported(actor="cli:ann", what="csv", period="a/b", rows=3, sha256="0" * 64, to="stdout")


def test_it_is_a_complete_directory(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "state" / "journal"
    writer = event_journal.tell(root, "export", [TOLD, TOLD], KEY, clock=lambda: 5)
    directory = Directory(root / writer)
    start, first, second, stop = [line for line, _, _ in directory.records()]
    assert isinstance(start, Start)
    assert (start.command, start.writer, start.pid, start.at_ns) == ("export", writer, os.getpid(), 5)
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert (first.topic, first.actor, first.data) == TOLD
    assert isinstance(stop, Stop)
    assert directory.complete
    assert salvage_dead(root) == []
    note = endnotes.read(directory.path)
    assert note is not None
    assert note.signer([SIGNER.verifier]) == SIGNER.verifier
    tree = merkle.Tree()
    tree.extend(bytes.fromhex(leaf) for _, _, leaf in directory.records())
    assert (note.head.size, note.head.root, note.head.at_ns) == (4, tree.root(), 5)


def test_each_time_is_a_directory_of_its_own(tmp_path: pathlib.Path) -> None:
    assert len({event_journal.tell(tmp_path, "export", [TOLD], KEY) for _ in range(3)}) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_what_root_tells_is_the_gateways(tmp_path: pathlib.Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    path = tmp_path / event_journal.tell(tmp_path, "export", [TOLD], KEY)
    assert {(one.stat().st_uid, one.stat().st_gid) for one in (path, *path.iterdir())} == {(1234, 1234)}


def test_where_nothing_can_be_written_it_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(OSError, match="journal"):
        event_journal.tell(tmp_path / "journal", "export", [TOLD], KEY)


def test_where_there_is_no_room_no_directory_is_left(tmp_path: pathlib.Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            event_journal.tell(tmp_path, "export", [TOLD], KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_the_actor_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"cli:\S+", event_journal.user())
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert event_journal.user() == f"cli:{2**31 - 7}"
