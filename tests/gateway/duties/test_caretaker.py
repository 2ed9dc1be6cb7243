"""The caretaker's thread: whoever pokes it is heard, and one bad round is not its end."""

import pathlib
import threading

import pytest

from gateway.duties import caretaker
from gateway.duties.caretaker import Caretaker
from gateway.processes.logs import FACTS
from metering.journal.journal import Directory
from metering.ledger.store import StoreUnavailable
from metering.pages import gone
from tests.support import journals, signing
from tests.support.gateway import eventually


class PokedAsTheWaitGivesUp(threading.Event):
    """Once `late` is set, an event that is set when a wait's time is over and its answer already fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.late = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        answer = super().wait(timeout)
        if self.late.is_set():
            self.late.clear()
            self.set()
        return answer


class FaultyRegister:
    """A register that fails in a way that nobody thought of, the first time."""

    def __init__(self) -> None:
        self.epoch = ""
        self.unready: list[str] = []
        self.rounds = 0

    async def begin(self, _tenants: object, *, lost: bool, new: object) -> str:
        self.rounds += 1
        if self.rounds == 1:
            raise LookupError("of our own making")
        raise StoreUnavailable("no connection")


def test_a_fault_in_one_round_is_logged_and_the_next_one_comes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Caretaker(tmp_path, f"unix://{tmp_path}/no-store", signing.keys(tmp_path))
    register = FaultyRegister()
    monkeypatch.setattr(keeper._upkeep, "register", register)
    keeper.start()
    try:
        eventually(lambda: register.rounds == 1)
        keeper.poke()
        eventually(lambda: register.rounds == 2)
    finally:
        keeper.close(5)
    assert "fault in the caretaker" in caplog.text


def test_a_poke_just_as_the_wait_gives_up_is_heard(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "PING_S", 0.01)
    keeper = Caretaker(tmp_path, f"unix://{tmp_path}/no-store", signing.keys(tmp_path))
    poked = PokedAsTheWaitGivesUp()
    monkeypatch.setattr(keeper, "_poked", poked)
    keeper.start()
    try:
        eventually((tmp_path / "pages" / "gone").exists)  # its first round is over
        makes = [journals.start(), journals.admitted(f"{journals.WRITER}-1")]
        directory = Directory(journals.write_directory(tmp_path / "journal", makes))
        poked.late.set()
        eventually(lambda: directory.closed_by_salvage, within_s=caretaker.ROUND_S / 3)
    finally:
        keeper.close(5)


def test_a_key_that_is_gone_is_named_and_what_ended_is_counted_all_the_same(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = signing.keys(tmp_path)
    (private,) = keys.path.glob("*.pem")
    private.unlink()
    makes = [journals.start(), journals.admitted(f"{journals.WRITER}-1")]
    journals.write_directory(tmp_path / "journal", makes)
    keeper = Caretaker(tmp_path, f"unix://{tmp_path}/no-store", keys)
    keeper.start()
    try:
        eventually(lambda: "ended journals not signed" in caplog.text)
        eventually((tmp_path / "pages" / gone.NAME).exists)
        assert journals.WRITER in gone.load(tmp_path / "pages").writers
    finally:
        keeper.close(5)
    told = [getattr(one, FACTS) for one in caplog.records if one.message == "ended journals not signed"]
    assert str(private) in told[0]["reason"]
