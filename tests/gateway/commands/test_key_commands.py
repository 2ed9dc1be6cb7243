"""`audit keys`: which keys there are, a new one, a stolen one; each change is told before it takes effect."""

import datetime
import json
import pathlib
import re
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway import cli
from gateway.commands import key_commands
from metering.audit.keys import Keys
from metering.journal import event_journal
from metering.journal.journal import directories
from metering.record import Event, Line
from tests.support import noteoracle, signing

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEIGHBRIDGE_CONFIG", "WEIGHBRIDGE_STATE_DIR", "WEIGHBRIDGE_JOURNAL__SIGNING_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def state_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    signing.keys(tmp_path / "state")
    return tmp_path / "state"


def told(state_dir: pathlib.Path) -> list[Event]:
    lines: list[Line] = [line for one in directories(state_dir / "journal") for line, _, _ in one.records()]
    events = [line for line in lines if isinstance(line, Event)]
    return sorted(events, key=lambda line: (line.at_ns, line.seq))


def run(*words: str, state_dir: pathlib.Path) -> int:
    return cli.main(["audit", "keys", *words, "--state-dir", str(state_dir)])


def text(at_ns: int) -> str:
    since = datetime.timedelta(microseconds=at_ns // 1_000)
    return (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + since).isoformat()


def test_the_list_is_what_verify_takes(state_dir: pathlib.Path, capsys: Capture) -> None:
    (key,) = Keys(state_dir).load().keys
    assert run("list", state_dir=state_dir) == 0
    comment, vkey = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"# {key.id}  from \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ  signs now", comment)
    assert vkey == key.vkey
    assert run("list", "--json", state_dir=state_dir) == 0
    assert capsys.readouterr().out.encode() == (state_dir / "keys" / "keys.json").read_bytes()


def test_without_keys_it_says_where_it_looked(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert run("list", state_dir=tmp_path / "none") == 1
    assert f"there are no keys in {tmp_path / 'none' / 'keys'}" in capsys.readouterr().err


def test_a_new_key_is_told_and_shown(state_dir: pathlib.Path, capsys: Capture) -> None:
    assert run("rotate", state_dir=state_dir) == 0
    old, new = Keys(state_dir).load().keys
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{old.id}  from ")
    assert shown[0].endswith("  rotated")
    assert shown[1].endswith("  signs now")
    events = told(state_dir)
    assert [(line.topic, line.actor) for line in events] == [("key", event_journal.user())] * 2
    assert [(line.data["what"], line.data["vkey"]) for line in events] == [
        ("rotated", old.vkey),
        ("new", new.vkey),
    ]
    assert events[0].data["until_ns"] == str(old.until_ns)
    (path,) = (state_dir / "journal").iterdir()
    noteoracle.check(path, old.vkey)
    assert (path / "end.note").exists()


def test_a_stolen_key_is_ended_and_replaced(state_dir: pathlib.Path) -> None:
    (key,) = Keys(state_dir).load().keys
    at = text(key.from_ns + 1_000)
    assert run("end", key.id, "--stolen", "--at", at, state_dir=state_dir) == 0
    ended, new = Keys(state_dir).load().keys
    assert (ended.id, ended.ended_because, ended.until_ns) == (
        key.id, "stolen", (key.from_ns + 1_000) // 1_000 * 1_000,
    )  # fmt: skip
    assert [line.data["what"] for line in told(state_dir)] == ["stolen", "new"]
    assert new.until_ns is None


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["end", "00000000", "--stolen", "--at", "2026-01-01T00:00:00Z"], 1, "there is no key 00000000"),
        (["end", "{key}", "--stolen", "--at", "2026-01-01T00:00:00Z"], 1, "was made after that"),
        (["end", "{key}", "--stolen", "--at", "2999-01-01T00:00:00Z"], 1, "in the future"),
        (["end", "{key}", "--stolen", "--at", "2026-01-01T00:00:00"], 2, "is no time with its zone"),
        (["end", "{key}", "--stolen", "--at", "noon"], 2, "'noon' is no time with its zone"),
        (["end", "{key}", "--at", "2026-01-01T00:00:00Z"], 2, "required: --stolen"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    state_dir: pathlib.Path, capsys: Capture, words: list[str], status: int, says: str
) -> None:
    (key,) = Keys(state_dir).load().keys
    try:
        found = run(*[word.format(key=key.id) for word in words], state_dir=state_dir)
    except SystemExit as error:
        found = int(str(error.code))
    assert found == status
    assert says in capsys.readouterr().err
    assert Keys(state_dir).load().keys == (key,)
    assert not (state_dir / "journal").exists()


def test_a_change_that_cannot_be_told_does_not_happen(state_dir: pathlib.Path, capsys: Capture) -> None:
    before = Keys(state_dir).load().keys
    files = sorted((state_dir / "keys").iterdir())
    (state_dir / "journal").write_text("in the way")
    assert run("rotate", state_dir=state_dir) == 1
    assert "no key was changed" in capsys.readouterr().err
    assert Keys(state_dir).load().keys == before
    assert sorted((state_dir / "keys").iterdir()) == files, "a private key is left"


def test_the_operators_key_is_found_by_the_configuration(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    secret, config = tmp_path / "secret.pem", tmp_path / "weighbridge.yaml"

    def renew() -> None:
        private = Ed25519PrivateKey.generate()
        secret.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    renew()
    state_dir = tmp_path / "state"
    Keys(state_dir, secret).ensure(time.time_ns())
    config.write_text(json.dumps({"state_dir": str(state_dir), "journal": {"signing_key_file": str(secret)}}))
    assert cli.main(["audit", "keys", "rotate", "-c", str(config)]) == 1
    assert "has been used before; a new one is needed" in capsys.readouterr().err
    renew()
    assert cli.main(["audit", "keys", "rotate", "-c", str(config)]) == 0
    assert len(Keys(state_dir).load().keys) == 2
    assert list((state_dir / "keys").glob("*.pem")) == []
    renew()
    monkeypatch.setenv("WEIGHBRIDGE_JOURNAL__SIGNING_KEY_FILE", str(secret))
    assert run("rotate", state_dir=state_dir) == 0
    assert list((state_dir / "keys").glob("*.pem")) == []


def test_a_moment_is_exact_to_the_microsecond() -> None:
    assert key_commands.moment("1970-01-01T01:00:00.000001+01:00") == 1_000
