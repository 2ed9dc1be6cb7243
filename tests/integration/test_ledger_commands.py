"""`weighbridge ledger …` on real stores and real journals."""

import contextlib
import json
import pathlib
import random
import shutil
import threading
from collections.abc import Iterator

import pytest

from gateway import cli
from metering.archive.trimming import Trimmer
from metering.journal.journal import Directory, directories, new_writer_id
from metering.ledger.embedded import Embedded
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import archives, journals

pytestmark = pytest.mark.integration

TENANTS = ("acme", "globex", "initech")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default state directory is one of the test's."""
    monkeypatch.chdir(tmp_path)


def told(state_dir: pathlib.Path) -> list[dict]:
    """What the journal there says of the ledger, in the order of its times."""
    lines = [line for writer in journal.read(state_dir / "journal") for line in writer.of("event")]
    found = [line for line in lines if line["topic"] == "ledger"]
    return [line["data"] for line in sorted(found, key=lambda line: line["at_ns"])]


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[Embedded]:
    with contextlib.closing(Embedded.start(tmp_path / "store")) as running:
        yield running


def write(
    root: pathlib.Path, rng: random.Random, *, end: journals.Make | None, calls: int = 30
) -> pathlib.Path:
    """A writer's directory; end: its last line, None: it was killed with a call open."""
    made = [
        journals.call(str(number), tenant=rng.choice(TENANTS), cost_pusd=rng.randrange(10**9))
        for number in range(calls)
    ]
    makes = [journals.start(), *made, end or journals.admitted("open", tenant="acme")]
    return journals.write_directory(root, makes, writer=new_writer_id(rng.randbytes(10)), per_segment=10)


def run(*words: object, store: Embedded) -> int:
    return cli.main(["ledger", *map(str, words), "--redis", store.url])


def difference(store: Embedded, *roots: pathlib.Path) -> list[object]:
    """What the store has and the journals have not, or the other way round, by the tests' own reading."""
    writers = [writer for root in roots for writer in journal.read(root)]
    with Connection(store.url) as connection:
        return ledger.check(ledger.recompute(writers), ledger.read(connection))


def test_journals_of_anywhere_are_folded_once(tmp_path: pathlib.Path, store: Embedded) -> None:
    rng = random.Random(1)
    here, there = tmp_path / "here", tmp_path / "there" / "journal"
    one = write(here, rng, end=journals.stop())
    write(there, rng, end=journals.stop())
    assert run("fold", one, there.parent, store=store) == 0
    assert difference(store, here, there) == []
    shutil.copytree(here, tmp_path / "copy")
    assert run("fold", tmp_path / "copy", here, store=store) == 0
    assert difference(store, here, there) == []
    with Connection(store.url) as connection:
        epoch = connection.ask("GET", "wb:1:epoch")
        assert {json.loads(text)["epoch"] for text in connection.hash("wb:1:writers").values()} == {epoch}


def test_a_journal_that_is_not_closed_is_left_until_its_writer_is_said_to_be_dead(
    tmp_path: pathlib.Path, store: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "journal"
    path = write(root, random.Random(2), end=None)
    assert run("fold", root, store=store) == 1
    assert f"--writer-is-dead {path.name}" in capsys.readouterr().err
    assert not Directory(path).closed_by_salvage
    assert run("fold", root, "--writer-is-dead", path.name, store=store) == 0
    assert "1 calls were lost with it" in capsys.readouterr().err
    assert Directory(path).closed_by_salvage
    assert difference(store, root) == []
    assert run("fold", root, "--writer-is-dead", "wnobody", store=store) == 2
    assert told(tmp_path / ".weighbridge") == [{"what": "writer_is_dead", "writers": path.name}]


def test_a_copy_that_was_closed_elsewhere_is_named(
    tmp_path: pathlib.Path, store: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    makes = [journals.start(), journals.call("1"), journals.admitted("open")]
    for name, more in (("a", [journals.call("open"), journals.stop()]), ("b", [])):
        journals.write_directory(tmp_path / name, [*makes, *more])
    assert run("fold", tmp_path / "a", store=store) == 0
    assert run("fold", tmp_path / "b", "--writer-is-dead", journals.WRITER, store=store) == 1
    assert f"FORK: acme of {journals.WRITER} is stopped at 4:" in capsys.readouterr().err
    assert difference(store, tmp_path / "a") == []


def test_folders_of_the_same_journals_at_the_same_time(tmp_path: pathlib.Path, store: Embedded) -> None:
    rng, root = random.Random(3), tmp_path / "journal"
    for _ in range(3):
        write(root, rng, end=journals.stop(), calls=300)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(run("fold", root, store=store))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [0, 0, 0]
    assert difference(store, root) == []


@pytest.fixture
def state(tmp_path: pathlib.Path) -> pathlib.Path:
    """A state directory with two journals."""
    rng = random.Random(4)
    for _ in range(2):
        write(tmp_path / "state" / "journal", rng, end=journals.stop())
    return tmp_path / "state"


def test_a_ledger_is_made_anew(
    tmp_path: pathlib.Path, state: pathlib.Path, store: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rebuild", "--state-dir", state, store=store) == 0
    assert difference(store, state / "journal") == []
    with Connection(store.url) as connection:
        before = connection.ask("GET", "wb:1:epoch")
        (hour,) = {key[-10:] for key in connection.keys("wb:1:{acme}:h:*")}
        connection.ask(
            "HINCRBY", f"wb:1:{{acme}}:h:{hour}", "web|llama|inf2|cost_pusd", "7"
        )  # somebody's mistake
        assert run("rebuild", "--state-dir", state, store=store) == 0
        assert len(difference(store, state / "journal")) == 1  # what is there is left
        assert (
            run("rebuild", "--tenant", "acme", "--state-dir", state, store=store) == 2
        )  # it asks, and nobody is there
        assert "--yes" in capsys.readouterr().err
        assert run("rebuild", "--tenant", "acme", "--yes", "--state-dir", state, store=store) == 0
        assert told(state) == [{"what": "rebuild"}] * 2 + [{"what": "rebuild", "tenant": "acme"}]
        assert difference(store, state / "journal") == []
        assert connection.ask("GET", "wb:1:epoch") != before


def test_what_is_in_the_archive_alone_is_folded_too(tmp_path: pathlib.Path, store: Embedded) -> None:
    place = archives.Place(tmp_path)
    directory = place.closed(calls=6)
    place.archiver().archive(directory)
    want = ledger.recompute(journal.read(directory.path.parent))
    shutil.rmtree(directory.path)
    config = tmp_path / "place.yaml"
    config.write_text(
        json.dumps({"state_dir": str(tmp_path / "empty"), "journal": {"archive": str(tmp_path / "archive")}})
    )
    assert run("rebuild", "-c", config, store=store) == 0
    with Connection(store.url) as connection:
        assert ledger.check(want, ledger.read(connection)) == []
        assert want.marks
    ((tmp_path / "archive") / "manifests" / directory.writer / "0000000000000001.json").write_text("{}")
    assert run("rebuild", "-c", config, store=store) == 1


def test_the_front_of_a_journal_that_is_still_written_is_folded_from_the_archive(
    tmp_path: pathlib.Path, store: Embedded
) -> None:
    """What its writer can no longer send; the rest it sends itself."""
    place = archives.Place(tmp_path / "state")
    makes = archives.makes(8)
    live = place.of(makes)
    archiver = place.archiver()
    archiver.archive(live)
    assert Trimmer(place.archive, archiver, place.maker).trim([live], 1 << 60, set()) > 0
    front = archives.Place(tmp_path / "front").of(makes[: live.starts_after])
    want = ledger.recompute(journal.read(front.path.parent))
    config = tmp_path / "place.yaml"
    state_dir, archive = str(tmp_path / "state"), str(tmp_path / "state" / "archive")
    config.write_text(json.dumps({"state_dir": state_dir, "journal": {"archive": archive}}))
    for _ in range(2):
        assert run("rebuild", "-c", config, store=store) == 0
        with Connection(store.url) as connection:
            assert ledger.check(want, ledger.read(connection)) == []
    assert want.marks


def test_how_the_ledger_stands(
    tmp_path: pathlib.Path, state: pathlib.Path, store: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(code: int) -> dict:
        capsys.readouterr()
        assert run("status", "--json", "--state-dir", state, store=store) == code
        return json.loads(capsys.readouterr().out)

    empty = found(1)
    assert (empty["epoch"], empty["writers"]) == ("", [])
    assert {stream["reason"] for stream in empty["streams"]} == {""}
    assert sum(stream["lag_records"] for stream in empty["streams"]) == 60
    assert run("fold", state, store=store) == 0
    level = found(0)
    assert level["streams"] == []
    assert level["eviction"] == "noeviction"
    assert [(one["tenant"], one["ready"]) for one in level["tenants"]] == [(name, True) for name in TENANTS]
    assert all(one["folded"] and one["here"] for one in level["writers"])
    with Connection(store.url) as connection:
        one, other = (directory.writer for directory in directories(state / "journal"))
        connection.ask("HSET", "wb:1:{acme}:m", one, "3:" + "f" * 16, other, "rubbish")
        connection.ask("HSET", "wb:1:writers", "wgone", '{"host":"h9","seen_ns":1,"seq":5,"state":"open"}')
    ill = found(1)
    assert {(one["writer"], one["reason"]) for one in ill["streams"]} == {(one, "FORK"), (other, "FORM")}
    assert {one["writer"]: one["host"] for one in ill["writers"] if not one["folded"]} == {"wgone": "h9"}
    (other_host,) = [one for one in ill["hosts"] if one["host"] == "h9"]
    assert {name: other_host[name] for name in ("open", "closed", "gone", "unfolded", "seen_ns")} == {
        "open": 1, "closed": 0, "gone": 0, "unfolded": 1, "seen_ns": 1,
    }  # fmt: skip
    (this_host,) = [one for one in ill["hosts"] if one["host"] != "h9"]
    assert (this_host["closed"], this_host["unfolded"]) == (2, 0)
    assert ill["unwritten"] is None  # there are no pages
    assert [one["unfolded"] for one in ill["tenants"]] == [["wgone"]] * 3
    assert run("status", "--state-dir", state, store=store) == 1
    text = capsys.readouterr().out
    assert "writer wgone  on h9  open, not folded in this epoch  seq 5" in text
    assert f"stream acme of {one}  lag" in text
    assert "FORK at 3:ffffffffffffffff" in text
    assert (
        "host h9  1 open, 0 closed, 0 given up, 1 not folded in this epoch  heard of 1970-01-01T00:00:00Z"
        in text
    )
    assert run("status", "--json", "--state-dir", tmp_path / "nothing here", store=store) == 0
    far = json.loads(capsys.readouterr().out)
    assert (far["hosts"], far["streams"]) == (ill["hosts"], [])
    assert [one["writer"] for one in far["writers"]] == [one["writer"] for one in ill["writers"]]


def test_wrong_stores_and_places(
    tmp_path: pathlib.Path, store: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ledger", "fold", str(tmp_path / "nowhere"), "--redis", store.url]) == 2
    write(tmp_path / "journal", random.Random(5), end=journals.stop())
    for url, code, words in (
        ("http://x", 2, "--redis must be redis://"),
        (f"unix://{tmp_path}/nobody", 1, "the store cannot be reached: no connection"),
    ):
        assert cli.main(["ledger", "fold", str(tmp_path / "journal"), "--redis", url]) == code
        assert words in capsys.readouterr().err
    empty = str(tmp_path / "empty")
    assert cli.main(["ledger", "fold", str(tmp_path / "journal"), "--state-dir", empty]) == 1
    assert "the embedded store is not running" in capsys.readouterr().err
