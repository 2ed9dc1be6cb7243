"""Closing hours with real processes: after the demo, from two gateways at once, and by a running one."""

import collections
import csv
import decimal
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.integration.test_demo import Demo
from tests.support.archives import Place
from tests.support.fleet import AT_NS, MINUTE_NS, NS_PER_HOUR, busy, registration
from tests.support.gateway import ROOT, eventually
from tests.support.journals import Make, start, stop, write_directory

pytestmark = pytest.mark.integration

WEIGHBRIDGE = (sys.executable, "-m", "gateway.cli")
PRICES = {"inf2.48xlarge": "12.98127", "trn1.32xlarge": "21.5", "g6e.xlarge": "1.861"}
WRITERS = ["w" + letter * 16 for letter in "ab"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WEIGHBRIDGE, *words], cwd=ROOT, capture_output=True, text=True, timeout=100)


def exported(state_dir: pathlib.Path, *flags: str) -> list[dict[str, str]]:
    now = time.time()
    days = [time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (now - 86_400, now + 2 * 86_400)]
    done = run("export", "--from", days[0], "--to", days[1], *flags, "--state-dir", str(state_dir))
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


def test_after_the_demo_the_running_hour_adds_up(tmp_path: pathlib.Path) -> None:
    demo = Demo(tmp_path, tmp_path / "state")
    try:
        demo.ready()
        before_s = time.time()
        looked = run("close", "--now", "--state-dir", str(demo.state_dir))
        assert looked.returncode == 0, looked.stderr
        rows = exported(demo.state_dir, "--basis", "allocated", "--running")
        ledger = exported(demo.state_dir)
    finally:
        demo.stop()
    this_hour = time.strftime("%Y-%m-%dT%H", time.gmtime(before_s))
    assert re.search(rf"^{this_hour} +now +3 ", looked.stdout, re.MULTILINE), looked.stdout
    hours: collections.Counter[str] = collections.Counter()
    for row in rows:
        hours[row["instance_type"]] += decimal.Decimal(row["hours"])
        if row["instance_id"]:
            price = decimal.Decimal(PRICES[row["instance_type"]])
            assert decimal.Decimal(row["list_usd"]) == decimal.Decimal(row["hours"]) * price
            assert row["simulated"] == "true"
    assert all(0 < hours[name] <= 1 for name in PRICES)
    assert {row["kind"] for row in rows} >= {"tenant", "headroom", "idle"}

    def sums(found: list[dict[str, str]]) -> dict[str, tuple[int, decimal.Decimal]]:
        """Calls and estimate of each tenant."""
        of: dict[str, tuple[int, decimal.Decimal]] = {}
        for row in found:
            if row["tenant"] and row["period_start"].startswith(this_hour):
                calls, usd = of.get(row["tenant"], (0, decimal.Decimal(0)))
                of[row["tenant"]] = calls + int(row["calls"]), usd + decimal.Decimal(row["estimated_usd"])
        return of

    assert sums(rows) == sums(ledger)
    assert len(sums(rows)) == 3


def six_hours(n: int, at_ns: int = AT_NS) -> list[Make]:
    made: list[Make] = [registration(at_ns, instance_id=f"i-{n}", backend=f"inf2-{n}")]
    for number in range(36):
        from_ns = at_ns + number * 10 * MINUTE_NS
        made += busy(
            f"{WRITERS[n]}-{number}", from_ns, 5 * MINUTE_NS, backend=f"inf2-{n}", tenant=f"tenant-{n}"
        )
    return [*made, stop(at_ns=at_ns + 6 * NS_PER_HOUR)]


def test_two_gateways_close_the_same_hours_at_once(tmp_path: pathlib.Path) -> None:
    """Both have all journals: their own, and the other's from the archive."""
    archive = tmp_path / "archive"
    processes = []
    for n, writer in enumerate(WRITERS):
        place = Place(tmp_path / writer)
        place.archive = Place(tmp_path).archive
        place.objects = Place(tmp_path).objects
        directory = place.of([start(writer=writer), *six_hours(n)], writer=writer, per_segment=20)
        place.archiver().archive(directory)
    assert len(list(archive.glob("manifests/*/end.json"))) == 2
    for writer in WRITERS:
        config = tmp_path / f"{writer}.yaml"
        config.write_text(
            json.dumps({"state_dir": str(tmp_path / writer), "journal": {"archive": str(archive)}})
        )
        words = ("close", "--from", "2026-01-01", "--to", "2026-01-01T06:00:00Z", "-c", str(config))
        processes.append(
            subprocess.Popen(
                [*WEIGHBRIDGE, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    told = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    closed = [
        line.split()[0] for out, _ in told for line in out.splitlines() if line.startswith("2026-01-01T")
    ]
    assert sorted(closed) == [f"2026-01-01T0{hour}" for hour in range(6)]  # each by one of them
    manifests = sorted(archive.glob("close/*/rev-*/manifest.json"))
    assert len(manifests) == 6
    for path in manifests:
        manifest = json.loads(path.read_text())
        assert manifest["totals"]["instances"] == "25.962540000000"
        assert manifest["totals"]["calls"] == 12
        assert [writer["complete"] for writer in manifest["writers"]] == ["end", "end"]


def test_a_month_is_closed_by_a_person_and_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    makes = [start(), registration(AT_NS), stop(at_ns=AT_NS + NS_PER_HOUR)]
    write_directory(tmp_path / "journal", makes)
    flags = ("--state-dir", str(tmp_path))
    nothing = run("close", "month", "2026-01", *flags)
    assert (nothing.returncode, "none of its hours is closed" in nothing.stderr) == (1, True)
    assert run("close", "--from", "2026-01-01", "--to", "2026-01-31", *flags).returncode == 0
    missing = run("close", "month", "2026-01", *flags)
    assert (missing.returncode, "hour 2026-01-31T00 and 23 more is not closed" in missing.stderr) == (1, True)
    assert run("close", "--from", "2026-01-31", "--to", "2026-02-01", *flags).returncode == 0
    unreconciled = run("close", "month", "2026-01", *flags)
    assert (unreconciled.returncode, "it is not reconciled" in unreconciled.stderr) == (1, True)
    closed = run("close", "month", "2026-01", "--without-bill", *flags)
    assert (closed.returncode, closed.stdout) == (
        0,
        "2026-01 is closed, 744 hours, without a bill; what comes later is a correction\n",
    )
    again = run("close", "month", "2026-01", "--without-bill", *flags)
    assert (again.returncode, "it was closed by cli:" in again.stderr) == (1, True)
    topics = [
        json.loads(line)
        for path in (tmp_path / "journal").glob("*/*.jsonl")
        for line in path.read_text().splitlines()
        if '"topic":"close"' in line
    ]
    assert sorted(line["data"]["what"] for line in topics) == ["hours", "hours", "month"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("close", "--from", "2026-01-01"), "--from and --to go together"),
        (("close", "--without-bill"), "--without-bill goes with close month"),
        (("close", "month"), "write close, or close month 2026-11"),
        (("close", "month", "2026-13"), "'2026-13' is no month since 1970"),
        (("close", "month", "2026-11", "--now"), "go with hours, not with a month"),
        (("close", "--from", "2026-01-02", "--to", "2026-01-01"), "which is not after its start"),
    ],
)
def test_wrong_words_are_named(words: tuple[str, ...], says: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").mkdir()
    done = run(*words, "--state-dir", str(tmp_path))
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_running_hour_is_said_to_be_that(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal").mkdir()
    begin, end = (time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(time.time() + s)) for s in (0, 7_200))
    done = run("close", "--from", begin, "--to", end, "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "nothing to close\n")
    assert "is not over: it can be closed after its end, and --now looks into it" in done.stderr


def test_a_closer_that_is_killed_leaves_nothing_half(tmp_path: pathlib.Path) -> None:
    """At a random moment, again and again, until one comes through."""
    write_directory(tmp_path / "journal", [start(writer=WRITERS[0]), *six_hours(0)], writer=WRITERS[0])
    words = ("close", "--from", "2026-01-01", "--to", "2026-01-01T06:00:00Z", "--state-dir", str(tmp_path))
    manifests = tmp_path / "close"
    for wanted in (1, 2, 4):
        process = subprocess.Popen(
            [*WEIGHBRIDGE, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        eventually(
            lambda wanted=wanted, process=process: (
                len(list(manifests.glob("*/rev-1/manifest.json"))) >= wanted or process.poll() is not None
            ),
            within_s=60,
            every_s=0.001,
        )
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = run(*words)
    assert done.returncode == 0, done.stderr
    found = sorted(manifests.glob("*/rev-*/manifest.json"))
    assert [path.parent.parent.name for path in found] == [f"2026-01-01T0{hour}" for hour in range(6)]
    for path in found:
        manifest = json.loads(path.read_text())
        assert manifest["totals"]["instances"] == "12.981270000000"
        assert (tmp_path / manifest["rows"]["path"]).stat().st_size == manifest["rows"]["bytes"]
    assert os.listdir(tmp_path / "closing") == []  # what the dead have left is gone


def test_a_running_gateway_closes_by_itself(tmp_path: pathlib.Path) -> None:
    """What the clerk starts, with the configuration that it has."""
    from backends.model import Backend
    from gateway.configuration.config import Config, Model, Tenant, Tier
    from gateway.duties.close_duty import FIRST_NS, CloseDuty

    at_ns = (time.time_ns() // NS_PER_HOUR - 6) * NS_PER_HOUR
    makes = [start(writer=WRITERS[0], at_ns=at_ns), *six_hours(0, at_ns)]
    write_directory(tmp_path / "journal", makes, writer=WRITERS[0])
    config = Config(
        state_dir=str(tmp_path),
        tenants=(Tenant(name="acme"),),
        models=(Model(name="llama", tiers=(Tier(backends=("inf2-0",)),)),),
        backends=(Backend(name="inf2-0", url="http://127.0.0.1:1", model="llama"),),
    )
    moments = itertools.count(time.time_ns(), FIRST_NS)
    duty = CloseDuty(config, lambda: next(moments))
    duty.close_if_due()
    assert duty.is_running
    eventually(lambda: duty.close_if_due() or not duty.is_running, within_s=100, every_s=0.2)
    found = sorted(
        json.loads(path.read_text())["hour"] for path in tmp_path.glob("close/*/rev-1/manifest.json")
    )
    assert found[:6] == list(range(at_ns // NS_PER_HOUR, at_ns // NS_PER_HOUR + 6))
    board = json.loads((tmp_path / "pages" / "close.gauges").read_text())
    assert {gauge["name"]: gauge["value"] for gauge in board["gauges"]}["weighbridge_close_hours_behind"] == 0
