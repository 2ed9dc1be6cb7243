"""The demo as its users start it, and each of its calls priced again from outside."""

import contextlib
import csv
import datetime
import decimal
import http.client
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.gateway import ROOT, eventually
from tests.support.processes import descendants, is_alive

pytestmark = pytest.mark.integration

WEIGHBRIDGE = (sys.executable, "-m", "gateway.cli")
READY_S = 60.0


class Demo:
    """A demo that runs, its output in files."""

    def __init__(
        self, directory: pathlib.Path, state_dir: pathlib.Path, port: int | None = 0, **env: str
    ) -> None:
        self.state_dir = state_dir
        self.out, self.log = directory / "out", directory / "log"
        flags = [] if port is None else ["--port", str(port)]
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*WEIGHBRIDGE, "demo", *flags, "--state-dir", str(state_dir)],
                cwd=ROOT, stdout=out, stderr=log, start_new_session=True, env=os.environ | env,
            )  # fmt: skip

    def ready(self) -> "Demo":
        """Wait for the last line."""
        ended = eventually(lambda: self._last_line().startswith("ready: ") or self._ended(), within_s=READY_S)
        assert ended is True, self.log.read_text()
        words = dict(word.split("=", 1) for word in self._last_line().removeprefix("ready: ").split())
        self.base_url, self.api_key = words["base_url"], words["api_key"]
        return self

    def _last_line(self) -> str:
        return (self.out.read_text().splitlines() or [""])[-1]

    def _ended(self) -> str:
        code = self.process.poll()
        return "" if code is None else f"ended with {code}"

    def stop(self) -> int:
        """Ctrl-C in a terminal: the signal goes to the whole foreground group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(40)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A first demo, ready. The last test of this file ends it."""
    directory = tmp_path_factory.mktemp("demo")
    one = Demo(directory, directory / "state")
    try:
        yield one.ready()
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_it_says_first_that_it_is_simulated(demo: Demo) -> None:
    assert "simulated" in demo.out.read_text().splitlines()[0]


def test_it_shows_costs_a_ticket_audit_lines_and_what_to_try(demo: Demo) -> None:
    text = demo.out.read_text()
    for tenant in ("acme", "globex", "initech"):
        assert f"\n{tenant} " in text
    for shown in ("Neuron SDK 2.28.0", "neuron=2.28.0", "family=g6e ", "simulated=true", "curl ", "OpenAI("):
        assert shown in text


def test_it_shows_a_limit_of_a_tenants(demo: Demo) -> None:
    said = re.search(
        r"^initech may make 600 calls a minute; .*x-ratelimit-remaining-requests: (\d+)$",
        demo.out.read_text(),
        re.M,
    )
    assert said is not None
    assert 598 <= int(said[1]) <= 599  # two calls, of which the first may have come back


def test_keys_are_for_their_owner_only(demo: Demo) -> None:
    files = sorted(demo.state_dir.glob("api-key*"))
    assert [file.name for file in files] == [
        "api-key",
        "api-key.globex",
        "api-key.initech",
        "api-key.platform",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert files[0].read_text().strip() == demo.api_key


def test_the_staffs_key_opens_what_is_for_auditors_alone(demo: Demo) -> None:
    def asked(path: str, key_file: str) -> int:
        host, port = demo.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        key = (demo.state_dir / key_file).read_text().strip()
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
            connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
            return connection.getresponse().status

    assert asked("/audit/v1/checkpoints", "api-key.platform") == 200
    assert asked("/v1/models", "api-key.platform") == 403
    assert asked("/audit/v1/checkpoints", "api-key") == 403
    assert f"$(cat {demo.state_dir / 'api-key.platform'})" in demo.out.read_text()


def test_each_call_costs_what_servers_and_prices_say(demo: Demo, tmp_path: pathlib.Path) -> None:
    csv = tmp_path / "ledger.csv"
    today = datetime.datetime.now(tz=datetime.UTC).date()
    days = [str(today + datetime.timedelta(days=more)) for more in (-1, 2)]
    period = ("--from", days[0], "--to", days[1])
    place = ("--state-dir", str(demo.state_dir))
    subprocess.run([*WEIGHBRIDGE, "export", *period, "--out", str(csv), *place], cwd=ROOT, check=True)
    recompute = [sys.executable, "-m", "tests.oracle.recompute", str(demo.state_dir), str(csv)]
    found = subprocess.run(recompute, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    figures = dict(word.split("=") for word in found.stdout.split())
    assert (figures["calls"], figures["tenants"], figures["fallbacks"]) == ("10", "3", "1")
    assert int(figures["cached_tokens"]) > 0

    # The judge does judge: one picodollar more in the CSV is a fault.
    lines = csv.read_text().splitlines()
    cells = lines[1].split(",")
    whole, _, places = cells[-2].partition(".")
    cells[-2] = f"{whole}.{int(places) + 1:012d}"
    csv.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    assert subprocess.run(recompute, cwd=ROOT, capture_output=True).returncode == 1


def test_its_configuration_passes_the_check(demo: Demo) -> None:
    subprocess.run([*WEIGHBRIDGE, "check", str(demo.state_dir / "demo.yaml")], cwd=ROOT, check=True)


def test_its_hours_become_focus_files(demo: Demo, tmp_path: pathlib.Path) -> None:
    """What instances cost so far, split among who used them: both files have one sum, and pass the check."""
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    hour = datetime.timedelta(hours=1)
    period = ["--from", f"{now - hour:%Y-%m-%dT%H:00:00Z}", "--to", f"{now + 2 * hour:%Y-%m-%dT%H:00:00Z}"]
    config = ["-c", str(demo.state_dir / "demo.yaml"), "--state-dir", str(demo.state_dir)]
    subprocess.run([*WEIGHBRIDGE, "close", "--now", *config], check=True, cwd=ROOT, capture_output=True)
    costs, tenants = set(), set()
    for form in ("focus-split", "focus-chargeback"):
        out = tmp_path / f"{form}.csv"
        export = ["export", *period, "--format", form, "--running", "--out", str(out), *config]
        subprocess.run([*WEIGHBRIDGE, *export], check=True, cwd=ROOT, capture_output=True)
        subprocess.run([*WEIGHBRIDGE, "focus", "check", str(out)], check=True, cwd=ROOT, capture_output=True)
        with open(out, newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["x_Simulated"] for row in rows} == {"true"}
        costs.add(sum(decimal.Decimal(row["EffectiveCost"]) for row in rows))
        tenants |= (
            {row["AllocatedResourceId"] for row in rows}
            if form == "focus-split"
            else {row["SubAccountId"] for row in rows}
        )
        assert {"acme", "globex", "initech"} <= tenants
    (cost,) = costs
    assert cost > 0


def test_a_second_demo_in_the_same_directory_changes_nothing(demo: Demo, tmp_path: pathlib.Path) -> None:
    before = (demo.state_dir / "demo.yaml").read_bytes()
    second = Demo(tmp_path, demo.state_dir)
    assert second.process.wait(20) == 3
    assert second.log.read_text() == (
        f"weighbridge: the state directory {demo.state_dir} is in use by another weighbridge; "
        "end that, or choose another with --state-dir\n"
    )
    assert (demo.state_dir / "demo.yaml").read_bytes() == before


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_a_taken_port_is_one_line(tmp_path: pathlib.Path, by: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if by == "flag":
            one = Demo(tmp_path, tmp_path / "state", port)
        else:
            one = Demo(tmp_path, tmp_path / "state", None, WEIGHBRIDGE_PORT=str(port))
        assert one.process.wait(30) == 3
    # The file that it leaves is for `serve` too: it names the port that was asked for.
    assert f"\nlisten: 127.0.0.1:{port}\n" in (one.state_dir / "demo.yaml").read_text()
    assert one.log.read_text() == (
        f"weighbridge: cannot listen on 127.0.0.1:{port} (listen): another process has it; "
        "end that, or choose another with --port\n"
    )


def test_a_directory_that_cannot_be_written_to_is_one_line(tmp_path: pathlib.Path) -> None:
    state_dir = pathlib.Path("/proc/weighbridge")
    one = Demo(tmp_path, state_dir)
    assert one.process.wait(30) == 3
    assert one.log.read_text() == (
        f"weighbridge: the state directory {state_dir} cannot be written to: No such file or directory\n"
    )


def test_ctrl_c_ends_every_child_and_a_second_start_goes_on(demo: Demo, tmp_path: pathlib.Path) -> None:
    children = descendants(demo.process.pid)
    assert len(children) == 6  # three servers, the store, a worker, the clerk
    assert demo.stop() == 0
    assert not any(is_alive(pid) for pid in children)

    again = Demo(tmp_path, demo.state_dir)
    try:
        again.ready()
        assert again.api_key == demo.api_key
        assert "\nsum         20 " in again.out.read_text()
        children = descendants(again.process.pid)
        again.process.kill()  # no chance to end its children itself
        eventually(lambda: not any(is_alive(pid) for pid in children), within_s=40)
    finally:
        again.process.kill()
        again.process.wait()
