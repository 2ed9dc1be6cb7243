"""What somebody who can write a state directory can do to its journals, and what finds it."""

import pathlib
import shutil

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering.audit import merkle, verify
from metering.audit.callbook import CallBook
from metering.audit.findings import Verdict, What
from metering.audit.notebook import NoteBook
from metering.audit.trust import Signed, Trust
from metering.audit.verdict import Anchor, Report
from metering.journal.journal import segment_name
from metering.journal.segments import SEALED_SUFFIX, read
from tests.support import signed
from tests.support.attacks import ATTACKS, OTHER, first_of, lines_of, rewritten, scene
from tests.support.signed import END_NOTE


def verified(state_dir: pathlib.Path, *anchors: Anchor) -> Report:
    return verify.verify(verify.find([state_dir]), [], anchors)


def findings(report: Report) -> set[What]:
    inside = [finding for journal in report.journals for finding in journal.inspected.findings]
    return {finding.what for finding in [*inside, *report.findings]}


def check(name: str, state_dir: pathlib.Path) -> None:
    attack = ATTACKS[name]
    scene(state_dir)
    attack.do(state_dir)
    report = verified(state_dir)
    assert attack.found in findings(report)
    assert report.verdict is attack.verdict


def test_the_scene_is_whole(tmp_path: pathlib.Path) -> None:
    scene(tmp_path)
    report = verified(tmp_path)
    assert findings(report) == set()
    assert report.verdict is Verdict.WHOLE


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_is_found(name: str, tmp_path: pathlib.Path) -> None:
    check(name, tmp_path)


def test_a_rewrite_of_everything_with_the_old_key_is_found_by_an_anchor_alone(tmp_path: pathlib.Path) -> None:
    """Whoever holds the key can write another history, and it is whole. An anchor is what he cannot reach."""
    scene(tmp_path)
    note = (first_of(tmp_path) / END_NOTE).read_bytes()
    rewritten(1)(tmp_path)
    assert verified(tmp_path).verdict is Verdict.WHOLE
    report = verified(tmp_path, verify.anchor(note, "kept elsewhere"))
    assert findings(report) == {What.TOO_FEW_LINES}
    assert report.verdict is Verdict.TAMPERED


def test_an_anchor_of_a_journal_that_is_gone_is_missed(tmp_path: pathlib.Path) -> None:
    scene(tmp_path)
    note = (tmp_path / "journal" / OTHER / END_NOTE).read_bytes()
    shutil.rmtree(tmp_path / "journal" / OTHER)
    assert verified(tmp_path).verdict is Verdict.WHOLE  # nothing here names the newest one
    report = verified(tmp_path, verify.anchor(note, "kept elsewhere"))
    assert [(one.what, one.writer) for one in report.findings] == [(What.DIRECTORY_MISSING, OTHER)]
    assert report.verdict is Verdict.INCOMPLETE


BROKEN_LAWS: dict[str, tuple[object, str, object, str]] = {
    "signature not checked": (
        Trust, "judge", lambda trust, _: Signed(trust._keys[0][0], False), "sign anew with another key",
    ),
    "validity ignored": (
        Trust, "judge", lambda trust, note: Signed(note.signer(verifier for verifier, _ in trust._keys), False),
        "sign with a stolen key",
    ),
    "root not compared": (merkle.Tree, "root", lambda _: bytes(32), "the same at equal length"),
    "size not compared": (NoteBook, "end", lambda *_: None, "drop the stop and the end.note"),
    "ended ignored": (verify, "_ended", lambda _: {}, "drop a directory"),
    "calls not counted": (CallBook, "record", lambda *_: None, "double a record"),
}  # fmt: skip


@pytest.mark.parametrize("law", BROKEN_LAWS)
def test_a_verifier_with_a_law_broken_on_purpose_misses_it(
    law: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, name, broken, attack = BROKEN_LAWS[law]
    check(attack, tmp_path / "sound")
    monkeypatch.setattr(of, name, broken)
    with pytest.raises(AssertionError):
        check(attack, tmp_path / "broken")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    state_dir = tmp_path_factory.mktemp("whole")
    signed.closed(state_dir, count=2, per_segment=4)
    return state_dir


def attacked(whole: pathlib.Path, target: pathlib.Path, files: dict[str, bytes]) -> Report:
    """The whole one with these files of its directory replaced."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(whole, target)
    for name, data in files.items():
        (first_of(target) / name).write_bytes(data)
    return verified(target)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_found(data: st.DataObject, whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    files = sorted(path for path in first_of(whole).iterdir() if path.stat().st_size)
    path = data.draw(st.sampled_from(files))
    altered = bytearray(path.read_bytes())
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= data.draw(st.integers(1, 255))
    report = attacked(whole, tmp_path / "attacked", {path.name: bytes(altered)})
    assert report.verdict is Verdict.TAMPERED


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_a_sealed_segment_that_alters_a_line_is_found(
    data: st.DataObject, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """zstd has bits that mean nothing: with one of those flipped the lines are the very same."""
    name = segment_name(1)
    plain = (first_of(whole) / name).read_bytes()
    sealed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(plain))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    target = tmp_path / "sealed"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(whole, target)
    (first_of(target) / name).unlink()
    path = first_of(target) / f"{name}{SEALED_SUFFIX}"
    path.write_bytes(sealed)
    assert verified(target).verdict is Verdict.TAMPERED or read(path) == plain


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_other_order_of_lines_is_found(
    data: st.DataObject, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    lines = lines_of(first_of(whole))
    order = data.draw(st.permutations(lines).filter(lambda order: order != lines))
    files = {segment_name(first + 1): b"".join(order[first : first + 4]) for first in range(0, len(order), 4)}
    assert attacked(whole, tmp_path / "attacked", files).verdict is Verdict.TAMPERED


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_line_left_out_or_said_twice_is_found(
    data: st.DataObject, whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    lines = lines_of(first_of(whole))
    at = data.draw(st.integers(0, len(lines) - 1))
    altered = lines[:at] + data.draw(st.sampled_from([[], [lines[at], lines[at]]])) + lines[at + 1 :]
    files = dict.fromkeys((segment_name(first + 1) for first in range(0, len(lines), 4)), b"")
    files |= {segment_name(n + 1): b"".join(altered[n : n + 4]) for n in range(0, len(altered), 4)}
    assert attacked(whole, tmp_path / "attacked", files).verdict is Verdict.TAMPERED
