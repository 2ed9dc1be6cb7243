"""Proofs of calls, checked by a program that shares nothing with us."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import cli
from metering.audit import merkle
from metering.audit.inspection import NO_FRONT, Front
from metering.audit.proof import PathBuilder
from metering.journal import chain
from metering.journal.segments import ARCHIVED
from tests.support import journals, signed
from tests.support.gateway import ROOT
from tests.support.journals import WRITER
from tests.support.signed import END_NOTE, signer

CHECKER = ROOT / "deploy" / "reference" / "check_proof.py"
VKEY = signer().verifier.vkey
OTHER_VKEY = signer(2).verifier.vkey


def prove(state_dir: pathlib.Path, call: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["audit", "prove", "--call", call, "--state-dir", str(state_dir)]) == 0
    proof: dict[str, Any] = json.loads(capsys.readouterr().out)
    return proof


def checked(proof: object, tmp_path: pathlib.Path, *keys: str) -> subprocess.CompletedProcess[str]:
    """As an auditor does it: Python, the package cryptography, and nothing of ours on the path."""
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(proof))
    command = [sys.executable, "-I", str(CHECKER), str(file)]
    for key in keys or (VKEY,):
        command += ["--key", key]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [1, 4, 6])
def test_a_call_is_proven(number: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = signed.closed(tmp_path, count=6)
    call = f"{WRITER}-{number}"
    proof = prove(tmp_path, call, capsys)
    assert (proof["call_id"], proof["writer"], proof["vkey"], proof["v"]) == (call, WRITER, VKEY, 1)
    assert [json.loads(line["line"])["kind"] for line in proof["lines"]] == ["admitted", "call"]
    for line in proof["lines"]:
        assert lines[line["index"]].decode() == line["line"] + "\n"
    done = checked(proof, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"call line of {call}, seq {proof['lines'][1]['index'] + 1} of " in done.stdout
    assert f"by {VKEY}" in done.stdout
    assert checked(proof, tmp_path, OTHER_VKEY, VKEY).returncode == 0


def test_the_first_note_that_covers_it_is_taken(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proof stays the same while the journal grows."""
    lines = signed.closed(tmp_path, count=6)
    proof = prove(tmp_path, f"{WRITER}-1", capsys)
    size = next(n for n, line in enumerate(lines) if b'"kind":"checkpoint"' in line)
    assert proof["note"].splitlines()[1] == str(size) == "4"


def test_only_the_note_at_the_end_may_cover_it(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = journals.encoded([journals.start(), *signed.calls(WRITER, 2), journals.stop()])
    signed.write(tmp_path / "journal", lines, note=signer())
    proof = prove(tmp_path, f"{WRITER}-2", capsys)
    assert proof["vkey"] is None  # there are no keys beside it
    assert checked(proof, tmp_path).returncode == 0


ALTERATIONS: dict[str, Any] = {
    "the line": lambda proof: proof["lines"][1].update(line=proof["lines"][1]["line"].replace("22500000", "22500001")),
    "its place": lambda proof: proof["lines"][1].update(index=proof["lines"][1]["index"] + 1),
    "a place below": lambda proof: proof["lines"][1].update(index=-1),
    "a place beyond": lambda proof: proof["lines"][1].update(index=10_000),
    "the path": lambda proof: proof["lines"][1]["path"].__setitem__(0, "00" * 32),
    "a longer path": lambda proof: proof["lines"][1]["path"].extend(["00" * 32] * 9),
    "a shorter path": lambda proof: proof["lines"][1]["path"].pop(),
    "the note's root": lambda proof: proof.update(note=_with_line(proof["note"], 2, "A" * 43 + "=")),
    "the note's size": lambda proof: proof.update(note=_with_line(proof["note"], 1, "5")),
    "the note's time": lambda proof: proof.update(note=_with_line(proof["note"], 3, "at_ns 1")),
    "the writer": lambda proof: proof.update(writer="w" + "z" * 16),
    "the call": lambda proof: proof.update(call_id=f"{WRITER}-9"),
    "the call's writer": lambda proof: proof.update(call_id="w" + "z" * 16 + "-1"),
    "no lines": lambda proof: proof.update(lines=[]),
    "no signature": lambda proof: proof.update(note=proof["note"].partition("\n\n")[0]),
    "nothing": lambda proof: proof.clear(),
    "the admission's line twice": lambda proof: proof["lines"].__setitem__(
        1, {**proof["lines"][0], "index": proof["lines"][1]["index"]}
    ),
}  # fmt: skip


def _with_line(note: str, at: int, text: str) -> str:
    lines = note.split("\n")
    lines[at] = text
    return "\n".join(lines)


@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_proof_is_refused(
    what: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed.closed(tmp_path)
    proof = prove(tmp_path, f"{WRITER}-3", capsys)
    ALTERATIONS[what](proof)
    done = checked(proof, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("not proven: ")


@pytest.mark.parametrize("key", [OTHER_VKEY, "nonsense", VKEY.replace("journal", "other"), "a+00000000+AAAA"])
def test_another_key_proves_nothing(
    key: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed.closed(tmp_path)
    proof = prove(tmp_path, f"{WRITER}-3", capsys)
    proof["vkey"] = key
    assert checked(proof, tmp_path, key).returncode == 1


def test_the_checker_is_short_and_knows_nothing_of_ours() -> None:
    text = CHECKER.read_text()
    assert len(text.splitlines()) < 120
    modules = {
        line.split()[1].partition(".")[0]
        for line in text.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert modules - sys.stdlib_module_names == {"cryptography"}


def said(state_dir: pathlib.Path, call: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["audit", "prove", "--call", call, "--state-dir", str(state_dir)]) == 1
    return capsys.readouterr().err


def test_what_cannot_be_proven_is_said(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 4)])
    path = signed.write(tmp_path / "journal", lines)
    call = f"{WRITER}-4"
    assert "no checkpoint of" in said(tmp_path, call, capsys)
    assert "there is no call" in said(tmp_path, f"{WRITER}-9", capsys)
    (path / END_NOTE).write_bytes(b"\xff")
    assert "is no note" in said(tmp_path, call, capsys)
    (path / END_NOTE).write_text("x")
    assert "a signed note is" in said(tmp_path, call, capsys)
    (path / END_NOTE).write_text(signer().sign(signed.head(WRITER, lines[:2])))
    assert "signs no more than 2 lines" in said(tmp_path, call, capsys)
    (path / END_NOTE).write_text(signer().sign(signed.head(WRITER, lines)._replace(root=bytes(32))))
    assert "is not what its note signs: verify it" in said(tmp_path, call, capsys)
    (path / END_NOTE).write_text(signer().sign(signed.head(WRITER, [*lines, b"more\n"])))
    assert "is not what its note signs: verify it" in said(tmp_path, call, capsys)


def test_of_a_trimmed_journal_what_is_here_is_proven(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = signed.closed(tmp_path, per_segment=4)
    path = tmp_path / "journal" / WRITER
    assert b'"kind":"admitted"' in lines[3]  # of the second call, whose record is behind it
    tree = merkle.Tree()
    tree.extend(signed.leaves(lines[:4]))
    archived = {
        "frontier": [n.hex() for n in tree.frontier],
        "last_seq": 4,
        "leaf": chain.leaf(lines[3][:-1]),
        "v": 1,
    }
    (path / ARCHIVED).write_text(json.dumps(archived))
    for _ in ("not deleted yet", "deleted"):
        assert checked(prove(tmp_path, f"{WRITER}-5", capsys), tmp_path).returncode == 0
        proof = prove(tmp_path, f"{WRITER}-2", capsys)
        assert [json.loads(line["line"])["kind"] for line in proof["lines"]] == ["call"]
        assert checked(proof, tmp_path).returncode == 0
        assert "up to seq 4 are in the archive alone" in said(tmp_path, f"{WRITER}-1", capsys)
        (path / "0000000000000001.jsonl").unlink(missing_ok=True)


def test_a_proof_goes_into_a_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed.closed(tmp_path / "state")
    out = tmp_path / "proof.json"
    args = [
        "audit",
        "prove",
        "--call",
        f"{WRITER}-1",
        "--state-dir",
        str(tmp_path / "state"),
        "--out",
        str(out),
    ]
    assert cli.main(args) == 0
    assert json.loads(out.read_text())["call_id"] == f"{WRITER}-1"
    assert capsys.readouterr().out == ""
    assert list(tmp_path.glob(".*")) == []


@given(st.data(), st.integers(1, 70))
def test_paths_made_in_passing_are_those_of_the_whole(data: st.DataObject, size: int) -> None:
    leaves = [bytes([n]) * 32 for n in range(size)]
    index = data.draw(st.integers(0, size - 1))
    front_size = data.draw(st.integers(0, index))
    front_tree = merkle.Tree()
    front_tree.extend(leaves[:front_size])
    front = Front(front_size, "", front_tree.frontier)
    builder = PathBuilder(index, size, front)
    at = front_size
    while at < size:
        more = data.draw(st.integers(1, size - at))
        builder.add(leaves[at : at + more])
        at += more
    path = builder.path()
    assert path == merkle.inclusion(leaves, index)
    assert merkle.root_from(leaves[index], index, size, path) == merkle.root(leaves)


def test_no_path_leads_from_a_leaf_that_is_not_here() -> None:
    with pytest.raises(ValueError, match="leaf 2 is one of the 3"):
        PathBuilder(2, 5, Front(3, "", (bytes(32), bytes(32))))
    with pytest.raises(IndexError):
        PathBuilder(5, 5, NO_FRONT)
