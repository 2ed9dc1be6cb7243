"""The command: what it prints where, and its exit status."""

import errno
import hashlib
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gateway import cli
from gateway.commands import discovery
from gateway.commands.discovery import served_model
from gateway.configuration import config_load
from gateway.configuration.config import Config
from gateway.configuration.config_load import Place
from gateway.processes import supervisor
from gateway.processes.sockets import Address
from metering import record
from metering.journal.journal import Journal, directories
from tests.support.journals import WRITER, call, start, stop, write_directory

ROOT = pathlib.Path(__file__).parent.parent.parent
GOOD = """\
tenants: [{name: acme}]
models: [{name: llama, tiers: [{backends: [b]}]}]
backends: [{name: b, url: "http://127.0.0.1:1", model: llama}]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and nobody's settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("WEIGHBRIDGE_CONFIG", "WEIGHBRIDGE_STATE_DIR", "WEIGHBRIDGE_PORT", "WEIGHBRIDGE_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


Capture = pytest.CaptureFixture[str]


def test_version(capsys: Capture) -> None:
    assert cli.main(["version"]) == 0
    assert re.fullmatch(r"weighbridge \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such"],
        ["audit", "show"],
        ["key", "new"],
        ["serve", "--slots", "0"],
        ["export", "--from", "x"],
    ],
)
def test_wrong_usage_is_2(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "usage: weighbridge" in capsys.readouterr().err


def test_help_is_the_docstrings(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for command in ("serve", "demo", "check", "key", "simulate", "version", "export", "audit"):
        assert re.search(rf"^ +{command} ", shown, re.MULTILINE)


def test_key_new_prints_the_key_and_its_hash(capsys: Capture) -> None:
    assert cli.main(["key", "new", "--tenant", "acme"]) == 0
    printed = capsys.readouterr()
    key, digest = re.fullmatch(r"key: (wb-\S+)\nhash: (sha256:\S+)\n", printed.out).groups()  # type: ignore[union-attr]
    assert digest == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert key not in printed.err


def test_key_new_for_a_name_that_cannot_be(capsys: Capture) -> None:
    assert cli.main(["key", "new", "--tenant", "Acme Inc"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("weighbridge: 'Acme Inc' is no name of a tenant: lower-case letters")


def test_check_says_ok_and_what_will_be_unpriced(tmp_path: pathlib.Path, capsys: Capture) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    assert cli.main(["check", str(file)]) == 0
    note, ok = capsys.readouterr().out.splitlines()
    assert note.startswith(
        "note: calls of llama on b will be unpriced (no_rate_card_no_instance_type): set backends[b]"
    )
    assert ok == f"{file}: ok, 1 tenant, 1 model, 1 backend"


def test_check_names_every_mistake_on_stderr(tmp_path: pathlib.Path, capsys: Capture) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD.replace("http:", "ftp:") + "lissten: x\nworkers: no\n")
    assert cli.main(["check", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.partition(": ")[0] for line in printed.err.splitlines()] == [
        f"{file}:{n}" for n in (3, 4, 5)
    ]


def test_the_example_can_be_checked_before_anything_is_set_up(capsys: Capture) -> None:
    assert cli.main(["check", str(ROOT / "deploy/reference/weighbridge.example.yaml")]) == 0


@pytest.mark.parametrize("command", [["check", "none.yaml"], ["serve", "-c", "none.yaml"]])
def test_a_file_that_is_not_there_is_one_line(command: list[str], capsys: Capture) -> None:
    assert cli.main(command) == 2
    assert capsys.readouterr().err == "none.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "there is no weighbridge.yaml: write one"),
        (["serve", "-c", "a.yaml", "--backend", "http://b"], "--backend needs no file"),
        (["serve", "--instance-type", "inf2.xlarge"], "--instance-type goes with --backend"),
        (["serve", "--model", "m"], "--model goes with --backend"),
        (["serve", "--slots", "1"], "--slots goes with --backend"),
    ],
)
def test_flags_of_serve_that_do_not_go_together(words: list[str], said: str, capsys: Capture) -> None:
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weighbridge: {said}")


class Runs:
    """What the supervisor was asked to run."""

    def __init__(self) -> None:
        self.configs: list[Config] = []

    def run(self, config: Config, *, on_ready: object = None) -> int:
        self.configs.append(config)
        if on_ready is not None:
            on_ready(Address("127.0.0.1", 8080))  # type: ignore[operator]
        return 0


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    monkeypatch.setattr(supervisor, "run", found.run)
    return found


def test_serve_takes_the_file_with_flags_over_it(tmp_path: pathlib.Path, runs: Runs) -> None:
    (tmp_path / "weighbridge.yaml").write_text(GOOD)
    assert cli.main(["serve", "--port", "81", "--state-dir", "s"]) == 0
    (config,) = runs.configs
    assert (config.listen, config.state_dir) == ("127.0.0.1:81", "s")


def test_serve_says_what_will_be_unpriced(tmp_path: pathlib.Path, runs: Runs, capsys: Capture) -> None:
    (tmp_path / "weighbridge.yaml").write_text(GOOD)
    assert cli.main(["serve"]) == 0
    assert cli.main(["serve", "--backend", "http://b", "--model", "m", "--instance-type", "g6e.xlarge"]) == 0
    in_file, by_flag = (line for line in capsys.readouterr().err.splitlines() if "note:" in line)
    assert in_file.startswith(
        "weighbridge: note: calls of llama on b will be unpriced (no_rate_card_no_instance_type)"
    )
    assert "--slots N" in by_flag
    assert len(runs.configs) == 2


def test_a_backends_key_that_cannot_be_read(tmp_path: pathlib.Path, runs: Runs, capsys: Capture) -> None:
    (tmp_path / "weighbridge.yaml").write_text(GOOD.replace("model: llama}", "model: llama, key_file: none}"))
    assert cli.main(["serve"]) == 2
    assert (
        capsys.readouterr().err == "none: backends[0].key_file: cannot be read: No such file or directory\n"
    )
    assert runs.configs == []


@pytest.mark.parametrize("command", [["check", "weighbridge.yaml"], ["serve"]])
def test_a_ca_file_that_cannot_be_read(
    tmp_path: pathlib.Path, runs: Runs, capsys: Capture, command: list[str]
) -> None:
    changed = GOOD.replace("http:", "https:").replace("model: llama}", "model: llama, ca_file: none.pem}")
    (tmp_path / "weighbridge.yaml").write_text(changed)
    assert cli.main(command) == 2
    assert (
        capsys.readouterr().err
        == "none.pem: backends[0].ca_file: cannot be read: No such file or directory\n"
    )
    assert runs.configs == []


class Models(http.server.BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.answers.pop(0)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def models() -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """A server's URL, and the answers that it gives to /v1/models, one after another."""
    answers: list[tuple[int, bytes]] = []
    handler = type("Handler", (Models,), {"answers": answers})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
        server.shutdown()
        thread.join()


ONE_MODEL = b'{"object":"list","data":[{"id":"Qwen/Qwen3-8B"},{"id":"lora"}]}'


def test_serve_backend_asks_the_server_and_keeps_a_key(
    models: tuple[str, list[tuple[int, bytes]]], runs: Runs, capsys: Capture, tmp_path: pathlib.Path
) -> None:
    url, answers = models
    answers.append((200, ONE_MODEL))
    assert cli.main(["serve", "--backend", url, "--instance-type", "g6e.xlarge", "--slots", "4"]) == 0
    (config,) = runs.configs
    (backend,) = config.backends
    assert (backend.url, backend.model, backend.instance_type, backend.slots) == (
        url,
        "Qwen/Qwen3-8B",
        "g6e.xlarge",
        4,
    )
    assert config.models[0].name == "qwen-qwen3-8b"
    key = (tmp_path / ".weighbridge" / "api-key").read_text().strip()
    assert config.tenants[0].keys[0].hash == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    said = capsys.readouterr().err
    assert "base_url=http://127.0.0.1:8080/v1" in said
    assert "api-key" in said
    assert key not in said


def test_serve_backend_with_a_name_asks_nobody(runs: Runs) -> None:
    assert cli.main(["serve", "--backend", "http://a:1", "--backend", "http://b:1", "--model", "m"]) == 0
    assert [backend.model for backend in runs.configs[0].backends] == ["m", "m"]


def test_serve_backend_waits_until_there_is_an_answer(
    models: tuple[str, list[tuple[int, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = models
    answers += [(503, b""), (404, b""), (200, ONE_MODEL)]
    monkeypatch.setattr(discovery, "RETRY_S", 0.01)
    notices: list[str] = []
    assert served_model(url, notices.append) == "Qwen/Qwen3-8B"
    assert notices == [
        f"waiting for {url} to say which model it serves (--model NAME: do not ask): it answers 503"
    ]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"{}", "names no model"), (200, b"<html>", "names no model"), (200, b'{"data":[]}', "names no model"),
        (200, b'{"data":[{"id":5}]}', "names no model"), (401, b"", "asks for a key"), (403, b"", "asks for a key"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_say(
    models: tuple[str, list[tuple[int, bytes]]], status: int, body: bytes, said: str, capsys: Capture
) -> None:
    url, answers = models
    answers.append((status, body))
    assert cli.main(["serve", "--backend", url]) == 1
    assert said in capsys.readouterr().err


def test_nobody_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(discovery.time, "sleep", stop)
    notices: list[str] = []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KeyboardInterrupt):
            served_model(url, notices.append)
        assert "refused" in notices[0]
        assert cli.main(["serve", "--backend", url]) == 1  # Ctrl-C: no traceback


def test_a_wrong_url_of_a_backend(capsys: Capture) -> None:
    assert cli.main(["serve", "--backend", "http://b:1", "--backend", "http://b:1", "--model", "m"]) == 2
    assert capsys.readouterr().err == "--backend: http://b:1: is given twice\n"
    assert cli.main(["serve", "--backend", "ftp://b"]) == 2
    assert capsys.readouterr().err.startswith("--backend: ftp://b: must be http://host[:port]")


def test_a_state_directory_that_cannot_be(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["serve", "--backend", "http://b", "--model", "m", "--state-dir", "file"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weighbridge: file: ")


def test_a_key_file_with_something_else(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "api-key").write_text("secret")
    assert cli.main(["serve", "--backend", "http://b", "--model", "m", "--state-dir", str(tmp_path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no API key" in line
    assert "secret" not in line


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> pathlib.Path:
    makes = [
        start(),
        call(f"{WRITER}-1"),
        call(f"{WRITER}-2", cost_pusd=None, unpriced_reason="slots_unknown"),
        stop(),
    ]
    return write_directory(tmp_path / ".weighbridge" / "journal", makes)


@pytest.mark.usefixtures("journal")
def test_audit_show(capsys: Capture) -> None:
    assert cli.main(["audit", "show", f"{WRITER}-2"]) == 0
    page = capsys.readouterr().out
    assert "unpriced: slots_unknown" in page
    assert cli.main(["audit", "show", "--last", "5"]) == 0
    assert capsys.readouterr().out.count("\n\ncall ") == 1
    assert cli.main(["audit", "show", "--last", "5", "--json"]) == 0
    assert {json.loads(line)["call_id"] for line in capsys.readouterr().out.splitlines()} == {
        f"{WRITER}-1",
        f"{WRITER}-2",
    }


@pytest.mark.usefixtures("journal")
def test_audit_show_of_what_is_not_there(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert cli.main(["audit", "show", f"{WRITER}-7"]) == 1
    assert cli.main(["audit", "show", "--last", "1", "--state-dir", "elsewhere"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert f"there is no call {WRITER}-7" in first
    assert second == (
        "weighbridge: there is no journal in elsewhere/journal; name the data's place with --state-dir or -c"
    )


def test_a_journal_that_was_altered_is_named_and_no_success(
    journal: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    (segment,) = journal.glob("*.jsonl")
    segment.write_bytes(
        segment.read_bytes().replace(b'"unpriced_reason":"slots', b'"unpriced_reason":"clots')
    )
    said = f"weighbridge: the journal of {WRITER} is broken at seq 3: "
    assert cli.main(["audit", "show", "--last", "5"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith(f"call      {WRITER}-1 ")
    assert f"{WRITER}-2" not in shown.out
    assert shown.err.startswith(said)
    assert cli.main(["export", *PERIOD, "--out", str(tmp_path / "rows.csv")]) == 1
    assert capsys.readouterr().err.splitlines()[1].startswith(said)
    assert (tmp_path / "rows.csv").exists()
    assert cli.main(["audit", "show", f"{WRITER}-2"]) == 1
    assert "the chain does not hold it" in capsys.readouterr().err


def test_where_the_data_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "weighbridge.yaml").write_text("state_dir: from-file\n")
    assert cli.main(["audit", "show", "--last", "1"]) == 1
    assert "from-file/journal" in capsys.readouterr().err
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", "none.yaml")
    assert cli.main(["audit", "show", "--last", "1"]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err


PERIOD = ["--from", "2026-01-01", "--to", "2026-01-02"]


@pytest.mark.usefixtures("journal")
def test_export_from_the_journals_says_so(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert cli.main(["export", *PERIOD]) == 0
    printed = capsys.readouterr()
    header, row = printed.out.splitlines()
    assert header.startswith("period_start,period_end,tenant,project,model,instance_family,calls,")
    assert row == "2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,acme,web,llama,inf2,2,200,0,100,0.000022500000,1"
    assert printed.err.startswith(
        "weighbridge: the embedded store is not running; the rows are from the journals in"
    )
    assert cli.main(["export", *PERIOD, "--out", "rows.csv", "--format", "csv"]) == 0
    assert (tmp_path / "rows.csv").read_text() == printed.out
    assert sorted(path.name for path in tmp_path.iterdir()) == [".weighbridge", "rows.csv"]


def events(root: pathlib.Path) -> list[record.Event]:
    """All event lines under a journal's root."""
    lines = (line for directory in directories(root) for line, _, _ in directory.records())
    return [line for line in lines if isinstance(line, record.Event)]


def test_each_export_is_told_in_the_journal(
    journal: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    assert cli.main(["export", *PERIOD, "--out", "rows.csv"]) == 0
    assert cli.main(["export", *PERIOD]) == 0
    told = events(journal.parent)
    assert {event.topic for event in told} == {"export"}
    assert all(event.actor and event.actor.startswith("cli:") for event in told)
    assert {event.data["to"] for event in told} == {"stdout", str(tmp_path / "rows.csv")}
    digest = hashlib.sha256((tmp_path / "rows.csv").read_bytes()).hexdigest()
    assert hashlib.sha256(capsys.readouterr().out.encode()).hexdigest() == digest
    for event in told:
        assert event.data["period"] == "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
        assert (event.data["what"], event.data["rows"], event.data["sha256"]) == ("csv", "1", digest)


def test_without_its_trace_nothing_is_exported(
    journal: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "write", full)
    for out in ([], ["--out", "rows.csv"]):
        assert cli.main(["export", *PERIOD, *out]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "nothing was done, since .weighbridge/journal cannot tell of it: No space left" in printed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".weighbridge"]
    assert events(journal.parent) == []


@pytest.mark.usefixtures("journal")
def test_export_from_an_embedded_store_that_is_gone(tmp_path: pathlib.Path, capsys: Capture) -> None:
    store = tmp_path / ".weighbridge" / "store"
    store.mkdir()
    (store / "url").write_text(f"unix://{store}/socket\n")
    assert cli.main(["export", *PERIOD]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err.startswith(
        "weighbridge: the store cannot be reached: no connection; the rows are from"
    )


@pytest.mark.usefixtures("journal")
def test_export_does_not_pass_off_one_hosts_journals_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("WEIGHBRIDGE_REDIS_URL", "unix:///nowhere/socket")
    assert cli.main(["export", *PERIOD]) == 1
    assert capsys.readouterr() == ("", "weighbridge: the store cannot be reached: no connection\n")


def test_export_of_nothing(capsys: Capture) -> None:
    assert cli.main(["export", *PERIOD]) == 1
    assert "there is no journal in .weighbridge/journal" in capsys.readouterr().err


@pytest.mark.parametrize(
    "period", [["--from", "yesterday", "--to", "2026-01-02"], ["--from", "2026-01-02", "--to", "2026-01-02"]]
)
def test_export_of_no_period(period: list[str], capsys: Capture) -> None:
    assert cli.main(["export", *period]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weighbridge: ")


@pytest.mark.usefixtures("journal")
def test_export_into_a_directory_that_is_not_there(capsys: Capture) -> None:
    assert cli.main(["export", *PERIOD, "--out", "none/rows.csv"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "weighbridge: none/rows.csv: No such file or directory"


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: pathlib.Path) -> None:
    makes = [start(), *(call(f"{WRITER}-{n}") for n in range(1, 2001)), stop()]
    write_directory(tmp_path / "journal", makes)
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "audit",
        "show",
        "--last",
        "2000",
        "--json",
        "--state-dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_the_place_without_any_setting() -> None:
    assert config_load.place(None, {}) == Place(state_dir=".weighbridge")


def test_tail_of_a_kind_that_there_is_not(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal").mkdir()
    assert cli.main(["audit", "tail", "--kind", "calls", "--state-dir", str(tmp_path)]) == 2
    assert "--kind calls: no line is of it; the kinds are admitted, call," in capsys.readouterr().err


def test_of_data_that_may_only_be_read_a_copy_is_asked_for(
    journal: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def only_read(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Journal, "create", only_read)
    assert cli.main(["export", *PERIOD]) == 1
    assert "Read-only file system; of data that may only be read, name a copy\n" in capsys.readouterr().err
