"""The journal of a command: whole, durable and like any other."""

import os
import pathlib
import re

import pytest

from metering import event_journal, events
from metering.journal import Directory, salvage_dead
from metering.record import Event, Start, Stop

TOLD = events.exported(actor="cli:ann", what="csv", period="a/b", rows=3, sha256="0" * 64, to="stdout")


def test_it_is_a_complete_directory(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "state" / "journal"
    writer = event_journal.tell(root, "export", [TOLD, TOLD], clock=lambda: 5)
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


def test_each_time_is_a_directory_of_its_own(tmp_path: pathlib.Path) -> None:
    assert len({event_journal.tell(tmp_path, "export", [TOLD]) for _ in range(3)}) == 3


def test_where_nothing_can_be_written_it_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(OSError, match="journal"):
        event_journal.tell(tmp_path / "journal", "export", [TOLD])


def test_the_actor_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"cli:\S+", event_journal.user())
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert event_journal.user() == f"cli:{2**31 - 7}"
