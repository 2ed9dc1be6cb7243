"""Exports of lines, and packs of a month, by the commands; and what is found of a pack that was altered."""

import hashlib
import io
import json
import pathlib
import shutil
import tarfile
from typing import Any

import pytest

from gateway import cli
from metering.archive.objects import LocalObjects
from metering.archive.trimming import Trimmer
from metering.audit import checkpoint, pack, verify
from metering.audit.checkpoint import Head
from metering.audit.findings import Verdict, What
from metering.audit.line_export import MANIFEST_SUFFIX
from metering.audit.pack import NotAPack, Pack
from metering.audit.trust import Trust
from metering.audit.verdict import Report
from metering.cost import close_manifest
from metering.cost.close_manifest import MonthState
from metering.cost.closes import Closes
from metering.journal.journal import directories
from metering.units import NS_PER_HOUR
from tests.support import archives, journals, signed
from tests.support.closed import manifest
from tests.support.journals import AT_NS, WRITER
from tests.support.signed import END_NOTE, signer

OTHER = "w" + "b" * 16
HOURS = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T01:00:00Z")


def two(state_dir: pathlib.Path) -> None:
    """Two tenants and several kinds; one call ends an hour later than it began."""
    late = AT_NS + NS_PER_HOUR
    makes = [
        signed.start(),
        *signed.calls(WRITER, 2),
        journals.admitted(f"{WRITER}-3", tenant="globex"),
        journals.call(f"{WRITER}-3", tenant="globex"),
        journals.admitted(f"{WRITER}-4"),
        journals.refused(),
        signed.event("config", digest="sha256:1"),
        signed.event("../odd", x="y"),
        journals.call(f"{WRITER}-4", finished_ns=late),
        journals.stop(),
    ]
    first = signed.signed_lines(makes)
    signed.write(state_dir / "journal", first, note=signer(), per_segment=6)
    signed.closed(state_dir, writer=OTHER, ended=[signed.ended(WRITER, first)])


def export(
    state_dir: pathlib.Path, out: pathlib.Path, *args: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    command = ["audit", "export", "--state-dir", str(state_dir), "--out", str(out), *(args or HOURS)]
    assert cli.main(command) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    manifest: dict[str, Any] = json.loads(out.with_name(out.name + MANIFEST_SUFFIX).read_bytes())
    assert manifest["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert manifest["lines"] == len(lines) == sum(manifest["kinds"].values())
    return lines, manifest


def test_the_lines_of_an_hour_with_their_places(tmp_path: pathlib.Path) -> None:
    two(tmp_path / "state")
    lines, manifest = export(tmp_path / "state", tmp_path / "out.jsonl")
    assert [(one["writer"], one["seq"]) for one in lines] == sorted(
        (one["writer"], one["seq"]) for one in lines
    )
    assert [one["line"]["seq"] for one in lines] == [one["seq"] for one in lines]
    ended_later = [one for one in lines if one["line"].get("call_id") == f"{WRITER}-4"]
    assert [one["line"]["kind"] for one in ended_later] == ["admitted"]
    for raw in (tmp_path / "out.jsonl").read_bytes().splitlines():
        line = raw[raw.index(b'"line":') + 7 : raw.rindex(b',"seq":')]
        assert json.loads(raw)["leaf"] == hashlib.sha256(b"\x00" + line).hexdigest()
    assert (manifest["from_hour"], manifest["to_hour"]) == ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
    assert manifest["vkeys"] == [signer().verifier.vkey]
    for writer in (WRITER, OTHER):
        part = manifest["writers"][writer]
        assert part["note"] == (tmp_path / "state" / "journal" / writer / END_NOTE).read_text()
        assert part["first_seq"] == 1


def test_the_lines_of_one_tenant(tmp_path: pathlib.Path) -> None:
    two(tmp_path / "state")
    lines, manifest = export(tmp_path / "state", tmp_path / "out.jsonl", *HOURS, "--tenant", "globex")
    assert [one["line"]["kind"] for one in lines] == ["admitted", "call"]
    assert (manifest["tenant"], manifest["kinds"]) == ("globex", {"admitted": 1, "call": 1})
    (part,) = manifest["writers"].values()
    size = checkpoint.parse(part["note"]).head.size
    assert part["last_seq"] <= size < part["last_seq"] + 5, "the first note that signs all of them"


def test_the_same_journals_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    two(tmp_path / "state")
    for name in ("a", "b"):  # the second export finds the event of the first one, which is of another hour
        export(tmp_path / "state", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def told(state_dir: pathlib.Path) -> list[dict[str, str]]:
    found = [line.line for one in directories(state_dir / "journal") for line in one.chained()]
    return [line.data for line in found if getattr(line, "topic", None) == "export"]


def test_an_export_is_told_by_the_journal(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path / "state")
    _, manifest = export(tmp_path / "state", tmp_path / "out.jsonl", *HOURS, "--tenant", "acme")
    (data,) = told(tmp_path / "state")
    assert (data["what"], data["tenant"], data["rows"]) == ("lines", "acme", "12")
    assert data["sha256"] == manifest["sha256"]


def test_a_live_journal_has_lines_that_nothing_signs_yet(tmp_path: pathlib.Path) -> None:
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 3)])
    signed.write(tmp_path / "state" / "journal", lines)
    _, manifest = export(tmp_path / "state", tmp_path / "out.jsonl")
    assert manifest["writers"][WRITER]["note"] is None
    assert manifest["vkeys"] == []


def test_a_broken_journal_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed.closed(tmp_path / "state")
    path = tmp_path / "state" / "journal" / WRITER / "0000000000000007.jsonl"
    path.write_bytes(path.read_bytes().replace(b"acme", b"bcme", 1))
    (tmp_path / "state" / "journal" / OTHER).mkdir()
    command = [
        "audit",
        "export",
        "--state-dir",
        str(tmp_path / "state"),
        "--out",
        str(tmp_path / "out"),
        *HOURS,
    ]
    assert cli.main(command) == 1
    assert f"the journal of {WRITER} is broken at seq" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [("--from", "x", "--to", "2026-01-01"), ("--from", "2026-01-01", "--to", "2026-01-01")]
)
def test_what_is_no_period(tmp_path: pathlib.Path, args: tuple[str, ...]) -> None:
    signed.closed(tmp_path)
    assert (
        cli.main(["audit", "export", "--state-dir", str(tmp_path), "--out", str(tmp_path / "o"), *args]) == 2
    )
    assert not (tmp_path / "o").exists()


def packed(state_dir: pathlib.Path, out: pathlib.Path, *args: str) -> dict[str, bytes]:
    command = ["audit", "pack", "--month", "2026-01", "--state-dir", str(state_dir), "--out", str(out), *args]
    assert cli.main(command) == 0
    with tarfile.open(out) as tar:
        return {about.name: tar.extractfile(about).read() for about in tar}  # type: ignore[union-attr]


def our_own(state_dir: pathlib.Path) -> None:
    """A private key beside the journals, so that the command can sign; the old one's entry stays."""
    two(state_dir)
    shutil.rmtree(state_dir / "keys")
    from metering.audit.keys import Keys

    keys = Keys(state_dir)
    keys.ensure(AT_NS)
    entries = json.loads((state_dir / "keys" / "keys.json").read_bytes())
    old = {"ended_because": "rotated", "from_ns": 0, "until_ns": AT_NS + 1, "vkey": signer().verifier.vkey}
    (state_dir / "keys" / "keys.json").write_text(json.dumps([old, *entries]))


def verified(path: pathlib.Path, *keys: str) -> Report:
    given = [key for text in keys for key in verify.given_keys(text)]
    return verify.verify(verify.find([path]), given, [])


def found(report: Report) -> set[What]:
    return {finding.what for finding in report.findings}


def test_a_pack_has_what_an_auditor_asks_for(tmp_path: pathlib.Path) -> None:
    our_own(tmp_path / "state")
    closes = Closes(LocalObjects(tmp_path / "state"))
    for revision in (1, 2):
        closes.commit(manifest([], revision=revision), [])
    closes.commit_month("2026-01", MonthState.CLOSED, bills=(), by="cli:ann", at_ns=1)
    kept = tmp_path / "kept.note"
    shutil.copy(tmp_path / "state" / "journal" / WRITER / END_NOTE, kept)
    members = packed(tmp_path / "state", tmp_path / "month.tar", "--anchor", str(kept))
    signed = json.loads(members["MANIFEST.json"])
    assert (signed["month"], signed["verdict"], signed["v"]) == ("2026-01", "whole", 1)
    assert {name: entry["sha256"] for name, entry in signed["files"].items()} == {
        name: hashlib.sha256(data).hexdigest()
        for name, data in members.items()
        if not name.startswith("MANIFEST.")
    }
    assert json.loads(members["verify.json"])["anchors_met"] == 1
    assert members["verify.txt"].endswith(b"verdict     whole\n")
    assert members["keys.json"] == (tmp_path / "state" / "keys" / "keys.json").read_bytes()
    assert members[f"checkpoints/{WRITER}.note"] == kept.read_bytes()
    assert [json.loads(line)["line"]["topic"] for line in members["events/config.jsonl"].splitlines()] == [
        "config"
    ]
    assert b"../odd" in members["events/other.jsonl"]
    assert members["ledger.csv"].count(b"\n") == 4  # a header, acme in two hours, globex in one
    assert [json.loads(line)["revision"] for line in members["closes.jsonl"].splitlines()] == [1, 2]
    assert [json.loads(line)["state"] for line in members["months.jsonl"].splitlines()] == ["closed"]
    inventory = {one["name"]: one for one in map(json.loads, members["inventory.jsonl"].splitlines())}
    for name, entry in inventory.items():
        data = (tmp_path / "state" / "journal" / name).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert f"{WRITER}/{END_NOTE}" in inventory
    assert not any(name.endswith("/lock") for name in inventory)


def test_a_pack_is_verified_and_told(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    our_own(tmp_path / "state")
    out = tmp_path / "month.tar"
    packed(tmp_path / "state", out)
    assert "the journals are whole" in capsys.readouterr().err
    assert (verified(out).verdict, found(verified(out))) == (Verdict.WHOLE, set())
    (data,) = told(tmp_path / "state")
    assert (data["what"], data["sha256"]) == ("pack", hashlib.sha256(out.read_bytes()).hexdigest())
    assert cli.main(["audit", "verify", str(out)]) == 0
    report = verified(out, signer(2).verifier.vkey)
    assert (report.verdict, found(report)) == (Verdict.TAMPERED, {What.NOT_SIGNED})


MEMBERS = {"ledger.csv": b"period\n", "keys.json": b"[]"}


def pack_of(path: pathlib.Path, members: dict[str, bytes], *, note: bytes | None = None) -> Pack:
    """A pack of MEMBERS, signed, with these members instead of those that were signed."""
    made = pack.made(MEMBERS, month="2026-01", verdict="whole", signer=signer(), at_ns=AT_NS)
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        there = {about.name: tar.extractfile(about).read() for about in tar}  # type: ignore[union-attr]
    there |= members
    if note is not None:
        there["MANIFEST.note"] = note
    with tarfile.open(path, "w") as tar:
        for name, data in there.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return Pack(path)


def what(one: Pack, trust: Trust | None = None) -> list[What]:
    own = Trust(verify.given_keys(signer().verifier.vkey))
    return [finding.what for finding in one.check(trust or own)]


def test_what_was_altered_in_a_pack_is_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "pack.tar"
    assert what(pack_of(path, {})) == []
    assert what(pack_of(path, {"ledger.csv": b"Period\n"})) == [What.PACK_DIFFERS]
    assert what(pack_of(path, {"more.csv": b""})) == [What.PACK_DIFFERS]
    assert what(pack_of(path, {"MANIFEST.json": b"{}"})) == [What.PACK_DIFFERS, What.PACK_DIFFERS]
    forged = json.loads(pack_of(path, {}).members["MANIFEST.json"]) | {"verdict": "tampered"}
    assert what(pack_of(path, {"MANIFEST.json": json.dumps(forged).encode()})) == [What.PACK_DIFFERS]
    assert what(pack_of(path, {}, note=b"x")) == [What.NOTE_UNREADABLE]
    data = pack_of(path, {}).members["MANIFEST.json"]
    foreign = signer().sign(Head(WRITER, len(data), hashlib.sha256(data).digest(), AT_NS))
    assert what(pack_of(path, {}, note=foreign.encode())) == [What.WRONG_WRITER]
    others = signer(2).sign(Head("pack/2026-01", len(data), hashlib.sha256(data).digest(), AT_NS))
    assert what(pack_of(path, {}, note=others.encode())) == [What.NOT_SIGNED]
    assert [one.what for one in pack_of(path, {}).check(None)] == [What.NO_KEYS]
    (missing,) = pack_of(path, {}).members.keys() - {"MANIFEST.json", "MANIFEST.note", "keys.json"}
    one = pack_of(path, {})
    del one.members[missing]
    assert what(one) == [What.PACK_DIFFERS]


def test_what_is_no_pack(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"no tar")
    with pytest.raises(NotAPack, match="is neither a directory nor a pack"):
        Pack(path)
    with tarfile.open(path, "w"):
        pass
    with pytest.raises(NotAPack, match="it has no MANIFEST"):
        Pack(path)
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    with pytest.raises(NotAPack, match="is there twice"):
        Pack(path)
    assert cli.main(["audit", "verify", str(path)]) == 2
    pack_of(path, {"keys.json": b"x"})
    assert cli.main(["audit", "verify", str(path)]) == 2


def test_without_anything_to_check_with_a_pack_is_incomplete(tmp_path: pathlib.Path) -> None:
    pack_of(tmp_path / "pack.tar", {})
    assert found(verified(tmp_path / "pack.tar")) == {What.NO_KEYS}


@pytest.mark.parametrize("month", ["2026", "2026-13", "1969-12", "2026-1", "9999-12"])
def test_what_is_no_month(month: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="is no month"):
        close_manifest.month_hours(month)
    signed.closed(tmp_path)
    assert (
        cli.main(
            ["audit", "pack", "--month", month, "--state-dir", str(tmp_path), "--out", str(tmp_path / "o")]
        )
        == 2
    )


def test_a_month_is_its_hours() -> None:
    assert len(close_manifest.month_hours("2026-02")) == 28 * 24
    assert len(close_manifest.month_hours("2028-02")) == 29 * 24
    assert close_manifest.month_hours("2026-01").start == AT_NS // NS_PER_HOUR
    assert close_manifest.month_hours("2025-12").stop == close_manifest.month_hours("2026-01").start


@pytest.fixture
def archived(tmp_path: pathlib.Path) -> pathlib.Path:
    """A state directory of which the archive alone has one journal, and the front of the other; its configuration."""
    our_own(tmp_path / "state")
    place = archives.Place(tmp_path / "state", LocalObjects(tmp_path / "archive"))
    for directory in directories(place.journals):
        archives.seal_all(directory)
        archives.make_facts(place.maker, directory)
    archiver = place.archiver()
    both = directories(place.journals)
    for directory in both:
        archiver.archive(directory)
    trimmer = Trimmer(place.archive, archiver, place.maker)
    trimmer.trim(both, 1 << 60, {directory.writer for directory in both})
    assert both[0].starts_after > 0
    shutil.rmtree(both[1].path)
    config = tmp_path / "place.yaml"
    config.write_text(
        json.dumps({"state_dir": str(tmp_path / "state"), "journal": {"archive": str(tmp_path / "archive")}})
    )
    return config


def test_what_is_in_the_archive_alone_is_packed_and_exported_too(
    tmp_path: pathlib.Path, archived: pathlib.Path
) -> None:
    our_own(tmp_path / "whole" / "state")
    month = ["--month", "2026-01"]
    period = ["--from", "2026-01-01", "--to", "2026-02-01"]
    for place, flags in (
        ("here", ["--state-dir", str(tmp_path / "whole" / "state")]),
        ("there", ["-c", str(archived)]),
    ):
        out = tmp_path / f"{place}.tar"
        assert cli.main(["audit", "pack", *month, *flags, "--out", str(out)]) == 0
        assert cli.main(["audit", "export", *period, *flags, "--out", str(out) + ".lines"]) == 0
    with tarfile.open(tmp_path / "here.tar") as here, tarfile.open(tmp_path / "there.tar") as there:
        for name in ("ledger.csv", "events/config.jsonl"):
            assert there.extractfile(name).read() == here.extractfile(name).read()  # type: ignore[union-attr]
        inventory = there.extractfile("inventory.jsonl").read()  # type: ignore[union-attr]
        assert json.loads(there.extractfile("verify.json").read())["verdict"] == "whole"  # type: ignore[union-attr]
    assert b'"archive/journal/' in inventory
    assert (tmp_path / "there.tar.lines").read_bytes() == (tmp_path / "here.tar.lines").read_bytes()
    here, there = (
        json.loads((tmp_path / f"{place}.tar.lines.manifest.json").read_bytes())["writers"]
        for place in ("here", "there")
    )
    assert there == here


def test_what_is_in_an_archive_that_is_not_named_is_missed(
    tmp_path: pathlib.Path, archived: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--state-dir", str(tmp_path / "state"), "--out", str(tmp_path / "o")]
    assert cli.main(["audit", "pack", "--month", "2026-01", *flags]) == 1
    assert cli.main(["audit", "export", "--from", "2026-01-01", "--to", "2026-02-01", *flags]) == 1
    assert capsys.readouterr().err.count("name journal.archive") == 2
    assert not (tmp_path / "o").exists()
