"""A gateway signs its journals: while it runs, when it is killed, over its starts, and with another key without one.

Judged by tests/support/noteoracle.py, which imports nothing of the product.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.support import gateway, noteoracle
from tests.support.gateway import ROOT, Gateway, eventually
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

NOWHERE = {"name": "b1", "url": "http://127.0.0.1:1", "model": "m", "slots": 8}


def vkeys(front: Gateway) -> list[str]:
    return [key["vkey"] for key in json.loads((front.state_dir / "keys" / "keys.json").read_bytes())]


def journals(front: Gateway) -> list[pathlib.Path]:
    return sorted(path for path in (front.state_dir / "journal").iterdir() if not path.name.startswith("."))


def kinds(path: pathlib.Path) -> list[str]:
    return [json.loads(line)["kind"] for line in noteoracle.lines(path)]


def wait_for(front: Gateway, starts: int) -> None:
    eventually(lambda: front.log.read_text().count("worker ready") == starts, within_s=gateway.READY_S)


def weighbridge(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def verify(front: Gateway) -> None:
    """As the product's own verdict."""
    found = weighbridge("audit", "verify", str(front.state_dir))
    assert found.returncode == 0, found.stdout + found.stderr


def test_each_journal_is_signed_to_its_end_and_named_by_the_next(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], workers=2, ready=False) as front:
        wait_for(front, 2)
        (key,) = vkeys(front)
        assert [path.stat().st_mode & 0o777 for path in (front.state_dir / "keys").glob("*.pem")] == [0o600]
        front.stop()
        first = journals(front)
        for path in first:
            assert kinds(path)[-2:] == ["checkpoint", "stop"]
            assert noteoracle.check(path, key)
            assert (path / "end.note").exists()
        front.restart()
        wait_for(front, 4)
        for path in set(journals(front)) - set(first):
            start = json.loads(noteoracle.lines(path)[0])
            assert [one["writer"] for one in start["ended"]] == [one.name for one in first]
            for one in start["ended"]:
                note = (front.state_dir / "journal" / one["writer"] / "end.note").read_text()
                assert note.split("\n")[1:3] == [str(one["size"]), one["root"]]
        front.stop()
        verify(front)


def test_a_killed_workers_journal_is_signed_by_who_closes_it(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], ready=False) as front:
        wait_for(front, 1)
        (killed,) = journals(front)
        os.kill(json.loads(noteoracle.lines(killed)[0])["pid"], signal.SIGKILL)
        eventually((killed / "end.note").exists)
        (key,) = vkeys(front)
        noteoracle.check(killed, key)
        assert kinds(killed)[-1] == "stop"
        assert (killed / "salvage.jsonl").exists()
        wait_for(front, 2)
        os.killpg(front.process.pid, signal.SIGKILL)
        front.process.wait()
        front.restart()
        wait_for(front, 3)
        front.stop()
        for path in journals(front):
            assert (path / "end.note").exists()
            noteoracle.check(path, key)
        verify(front)


def test_a_crash_between_the_stop_and_its_note_is_made_good(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], ready=False) as front:
        wait_for(front, 1)
        front.stop()
        (path,) = journals(front)
        (path / "end.note").unlink()
        front.restart()
        wait_for(front, 2)
        assert (path / "end.note").exists()
        noteoracle.check(path, *vkeys(front))
        front.stop()
        verify(front)


def test_a_new_key_is_taken_up_without_a_restart(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], workers=2, ready=False) as front:
        wait_for(front, 2)
        live = journals(front)
        done = weighbridge("audit", "keys", "rotate", "--state-dir", str(front.state_dir))
        assert done.returncode == 0, done.stderr
        old, new = vkeys(front)
        eventually(lambda: all("checkpoint" in kinds(path) for path in live))
        for path in live:
            assert kinds(path)[-3:] == ["event", "event", "checkpoint"], "the change is signed at once"
            note = json.loads(noteoracle.lines(path)[-1])["note"]
            assert noteoracle.read(note, old).size == len(kinds(path)) - 1
        front.stop()
        for path in live:
            note = (path / "end.note").read_text()
            assert noteoracle.read(note, new).size == len(kinds(path))
            noteoracle.check(path, old, new)
        (command,) = set(journals(front)) - set(live)
        assert json.loads(noteoracle.lines(command)[0])["command"] == "audit keys rotate"
        noteoracle.check(command, old)
        assert front.process.returncode == 0
        verify(front)


def test_an_operators_key_signs_and_is_not_kept(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret.pem"

    def renew() -> None:
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", secret], check=True)

    renew()
    journal = {"signing_key_file": str(secret)}
    with gateway.running(tmp_path, [NOWHERE], ready=False, journal=journal) as front:
        wait_for(front, 1)
        front.stop()
        renew()
        front.restart()
        wait_for(front, 2)
        front.stop()
        old, new = vkeys(front)
        assert list((front.state_dir / "keys").glob("*.pem")) == []
        signed = {path.name: noteoracle.check(path, old, new) for path in journals(front)}
        assert len(signed) == 3, "two workers', and the start's that told of the new key"
        verify(front)
        secret.unlink()
        front.restart()
        assert front.process.wait(gateway.READY_S) == 1
        assert "no key to sign the journal with" in front.log.read_text()
        assert "secret.pem: No such file" in front.log.read_text()


def test_checkpoints_go_to_the_log_the_store_and_the_archive(tmp_path: pathlib.Path) -> None:
    anchored = tmp_path / "archive" / "anchors"
    with gateway.running(
        tmp_path, [NOWHERE], ready=False, journal={"archive": str(tmp_path / "archive")}
    ) as front:
        wait_for(front, 1)
        assert weighbridge("audit", "keys", "rotate", "--state-dir", str(front.state_dir)).returncode == 0
        eventually(lambda: list(anchored.rglob("*.note")), within_s=30)
        front.stop()
        ended = {path.name: (path / "end.note").read_text() for path in journals(front)}
        found = re.findall(r'^\{.*"event": ?"journal checkpoint".*\}$', front.log.read_text(), re.MULTILINE)
        logged = [json.loads(line) for line in found]
        assert logged
        for line in logged:
            key = next(vkey for vkey in vkeys(front) if vkey.split("+")[1] == line["key"])
            note = noteoracle.read(line["note"], key)
            assert (note.writer, note.size) == (line["writer"], line["size"])
        (worker,) = {line["writer"] for line in logged}
        assert logged[-1]["note"] == ended[worker], "the end's is sent at once"
        front.restart()
        wait_for(front, 2)

        def stored() -> dict[str, str]:
            with Valkey((front.state_dir / "store" / "url").read_text().strip()) as store:
                flat = store.ask("HGETALL", "wb:1:anchors")
            return dict(zip(flat[::2], flat[1::2], strict=True))

        eventually(lambda: ended.items() <= stored().items())
        with Valkey((front.state_dir / "store" / "url").read_text().strip()) as store:
            store.ask("FLUSHALL")
        eventually(lambda: ended.items() <= stored().items(), within_s=60)
        front.stop()
        done = weighbridge("audit", "verify", str(front.state_dir), "--anchor", str(anchored))
        assert done.returncode == 0, done.stdout + done.stderr


def duty_failing(front: Gateway, duty: str) -> float:
    _, page = front.get("/metrics", front.keys["acme"])
    found = re.search(rf'^weighbridge_duty_failing\{{duty="{duty}"\}} (\S+)$', page.decode(), re.MULTILINE)
    return float(found[1]) if found else -1


def pid_of(path: pathlib.Path) -> int:
    return json.loads(noteoracle.lines(path)[0])["pid"]


def test_an_operators_key_that_is_gone_for_a_while(tmp_path: pathlib.Path) -> None:
    """It is told at once; a worker that is started meanwhile takes calls, unsigned; then it is signed whole."""
    secret, away = tmp_path / "secret.pem", tmp_path / "away.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", secret], check=True)
    journal = {"signing_key_file": str(secret)}
    with gateway.running(tmp_path, [NOWHERE], ready=False, journal=journal) as front:
        wait_for(front, 1)
        eventually(lambda: duty_failing(front, "key") == 0, within_s=20)
        secret.rename(away)
        eventually(lambda: duty_failing(front, "key") == 1, within_s=20)
        (first,) = journals(front)
        os.kill(pid_of(first), signal.SIGKILL)
        wait_for(front, 2)
        (second,) = set(journals(front)) - {first}
        eventually(lambda: "event" in kinds(second))
        assert front.post("/v1/chat/completions", {"model": "none", "messages": []}).status == 404
        eventually(lambda: "refused" in kinds(second))  # it takes lines
        assert "checkpoint" not in kinds(second)
        assert weighbridge("audit", "verify", str(front.state_dir)).returncode == 4
        away.rename(secret)
        eventually(lambda: "checkpoint" in kinds(second))
        told = [json.loads(line) for line in noteoracle.lines(second)]
        assert [one["data"]["what"] for one in told if one["kind"] == "event"] == ["missing", "found"]
        eventually(lambda: duty_failing(front, "key") == 0, within_s=60)
        eventually((first / "end.note").exists, within_s=60)
        front.stop()
        for path in (first, second):
            noteoracle.check(path, *vkeys(front))
        verify(front)


def test_a_key_of_ours_that_is_gone_is_replaced(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], ready=False) as front:
        wait_for(front, 1)
        (path,) = journals(front)
        (private,) = (front.state_dir / "keys").glob("*.pem")
        private.unlink()
        eventually(lambda: len(vkeys(front)) == 2, within_s=20)
        eventually(lambda: "checkpoint" in kinds(path))
        front.stop()
        noteoracle.check(path, *vkeys(front))
        verify(front)
