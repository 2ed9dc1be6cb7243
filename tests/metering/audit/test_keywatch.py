"""A running worker and its keys: what it tells, and which key signs when."""

import contextlib
import json
import pathlib
from collections.abc import AsyncIterator

import pytest

from metering.audit import keywatch
from metering.audit.endnotes import Ends
from metering.audit.keyring import OVERLAP_NS
from metering.audit.keys import Keys, untold
from metering.audit.keywatch import KeyWatch
from metering.audit.notary import Notary, Signed
from tests.metering.journal.test_recorder import World, run
from tests.support import journals, noteoracle
from tests.support.journals import AT_NS, WRITER

SECOND = 10**9


class Watched:
    """A recorder whose keys are watched."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.keys = Keys(root)
        self._ensure()
        self.world = World(root / "journal")
        self.watch = KeyWatch(self.keys, lambda: self.world.now_ns)
        self.world.recorder._notary = Notary(WRITER, self.watch.key)
        self.signed: list[str] = []
        self.world.recorder.on_checkpoint(lambda one: self.signed.append(one.key_id))

    def _ensure(self) -> None:
        self.keys.ensure(AT_NS, untold)

    async def look(self) -> None:
        """One look, and all that it leads to."""
        self.watch.look(self.world.recorder)
        await self.world.until(lambda: not self.world.recorder._entries and not self.world.recorder._to_sign)

    def ids(self) -> list[str]:
        return [key.id for key in self.keys.load().keys]

    def told(self) -> list[dict[str, str]]:
        lines = [json.loads(line) for line in noteoracle.lines(self.root / "journal" / WRITER)]
        return [line["data"] for line in lines if line["kind"] == "event" and line["topic"] == "key"]

    async def end(self) -> None:
        await self.world.append_all(journals.tick())
        await self.world.recorder.stop()
        vkeys = [key.vkey for key in self.keys.load().keys]
        noteoracle.check(self.root / "journal" / WRITER, *vkeys)


@contextlib.asynccontextmanager
async def watched(root: pathlib.Path) -> AsyncIterator[Watched]:
    made = Watched(root)
    await made.world.start()
    yield made
    await made.end()


def test_no_change_is_no_line(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path) as w:
            await w.look()
            assert (w.told(), w.signed) == ([], [])

    run(scenario)


def test_a_new_key_is_told_signed_by_the_old_one_and_taken_up(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path) as w:
            w.keys.rotate(AT_NS + SECOND, untold)
            w.world.now_ns += 2 * SECOND
            await w.look()
            await w.look()
            old, new = w.ids()
            assert [(data["what"], data["key"]) for data in w.told()] == [("rotated", old), ("new", new)]
            assert w.signed == [old]
        assert w.signed == [old, new, new], "a checkpoint, and the note at the end"

    run(scenario)


@pytest.mark.parametrize("late", [False, True])
def test_a_key_that_counts_no_more_signs_no_more(tmp_path: pathlib.Path, late: bool) -> None:
    """late: the worker had been stopped for longer than the old key was good."""

    async def scenario() -> None:
        async with watched(tmp_path) as w:
            (old,) = w.ids()
            if late:
                w.keys.rotate(AT_NS + SECOND, untold)
                w.world.now_ns += SECOND + OVERLAP_NS
            else:
                w.keys.end(old, AT_NS + SECOND, AT_NS + 2 * SECOND, untold)
                w.world.now_ns += 2 * SECOND
            await w.look()
            new = w.ids()[1]
            assert w.signed == [new]

    run(scenario)


def test_an_old_key_that_was_stolen_is_told_and_changes_nothing_else(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with watched(tmp_path) as w:
            w.keys.rotate(AT_NS + SECOND, untold)
            await w.look()
            old, new = w.ids()
            w.keys.end(old, AT_NS, AT_NS + SECOND, untold)
            await w.look()
            assert [data["what"] for data in w.told()] == ["rotated", "new", "stolen"]
        assert w.signed == [old, new, new]

    run(scenario)


def test_keys_that_cannot_be_read_are_named_once_and_the_old_one_goes_on(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with watched(tmp_path) as w:
            (old,) = w.ids()
            good = (w.keys.path / "keys.json").read_bytes()
            (w.keys.path / "keys.json").write_text("[]")
            for _ in range(3):
                await w.look()
            assert caplog.text.count("keys cannot be read") == 1
            (w.keys.path / "keys.json").write_bytes(good)
            await w.look()
        assert w.signed == [old, old]
        assert w.told() == []

    run(scenario)


def test_it_is_found_where_the_old_key_always_signs_once_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = keywatch.Recorder.change_key
    monkeypatch.setattr(
        keywatch.Recorder, "change_key", lambda one, key, make, at_once: change(one, key, make, at_once=False)
    )
    with pytest.raises(AssertionError):
        test_a_key_that_counts_no_more_signs_no_more(tmp_path, late=False)


class Keyless(Watched):
    """A recorder that is started while the private key is away."""

    def __init__(self, root: pathlib.Path) -> None:
        keys = Keys(root)
        keys.ensure(AT_NS, untold)
        (self.private,) = keys.path.glob("*.pem")
        self.away = self.private.rename(root / "away")
        super().__init__(root)

    def _ensure(self) -> None:
        """It is there, and gone again."""


def test_a_writer_that_finds_no_key_writes_and_signs_all_once_there_is_one(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        made = Keyless(tmp_path)
        await made.world.start()
        assert made.watch.key is None
        for _ in range(3):
            await made.look()
        assert made.told() == [{"what": "missing"}]
        assert [one.message for one in caplog.records].count("keys cannot be read") == 1
        await made.world.append_all(journals.tick())
        assert made.signed == []
        made.away.rename(made.private)
        await made.look()
        await made.world.until(lambda: made.signed)
        (key_id,) = made.ids()
        assert made.signed == [key_id]
        assert made.told() == [{"what": "missing"}, {"key": key_id, "what": "found"}]
        await made.end()

    run(scenario)


def test_a_writer_that_never_has_a_key_leaves_its_note_to_others(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        made = Keyless(tmp_path)
        await made.world.start()
        await made.world.append_all(journals.tick())
        await made.world.recorder.stop()
        path = tmp_path / "journal" / WRITER
        assert not (path / "end.note").exists()
        made.away.rename(made.private)
        (signed,) = Ends(tmp_path / "journal").sign(lambda: made.keys.signing_key(made.keys.load()), AT_NS)
        assert isinstance(signed, Signed)
        noteoracle.check(path, *[key.vkey for key in made.keys.load().keys])

    run(scenario)
