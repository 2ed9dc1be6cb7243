"""Commands that find in the archive what is on this disk no more."""

import json
import pathlib
import shutil

import pytest

from gateway import cli
from metering.archive.trimming import Trimmer
from tests.support.archives import Place
from tests.support.journals import AT_NS, WRITER, admitted, call, start, stop

CALLS = 8


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A state directory whose journal is archived; the configuration names both."""
    one = Place(tmp_path)
    makes = [make for n in range(1, CALLS + 1) for make in (admitted(f"{WRITER}-{n}"), call(f"{WRITER}-{n}"))]
    directory = one.of([start(), *makes, stop()])
    archiver = one.archiver()
    archiver.archive(directory)
    Trimmer(one.archive, archiver, one.maker).trim([directory], 1 << 60, {WRITER})
    assert directory.starts_after == 16
    monkeypatch.setenv("WEIGHBRIDGE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("WEIGHBRIDGE_JOURNAL__ARCHIVE", str(tmp_path / "archive"))
    return one


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_call_is_shown_from_the_archive(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "audit", "show", f"{WRITER}-2")
    assert code == 0
    assert f"journal/{WRITER}/0000000000000005.jsonl.zst" in out
    shutil.rmtree(place.journals / WRITER)
    code, out, _ = run(capsys, "audit", "show", f"{WRITER}-8", "--json")
    assert code == 0
    assert json.loads(out)["call_id"] == f"{WRITER}-8"


def test_one_that_is_nowhere_says_where_it_was_looked_for(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    code, _, err = run(capsys, "audit", "show", f"{WRITER}-99")
    assert code == 1
    assert f"nor is it in the archive, {tmp_path}/archive" in err
    code, _, err = run(capsys, "audit", "show", "w" + "b" * 16 + "-1")
    assert code == 1
    assert "there is no journal of the writer" in err


def test_an_archive_that_cannot_be_read_is_said(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    for path in (tmp_path / "archive" / "journal" / WRITER).iterdir():
        path.write_bytes(b"no")
    code, _, err = run(capsys, "audit", "show", f"{WRITER}-2")
    assert (code, "altered in the archive" in err) == (1, True)


def test_rows_are_those_of_here_and_there(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    period = ("export", "--from", "2026-01-01", "--to", "2026-01-02")
    assert AT_NS == 1_767_225_600 * 10**9
    code, out, err = run(capsys, *period)
    assert code == 0
    assert f",{CALLS}," in out
    assert f"and in {tmp_path}/archive" in err
    monkeypatch.delenv("WEIGHBRIDGE_JOURNAL__ARCHIVE")
    code, out, err = run(capsys, *period)
    assert (code, out) == (1, "")
    assert f"in the archive alone ({WRITER} up to seq 16): name journal.archive" in err
