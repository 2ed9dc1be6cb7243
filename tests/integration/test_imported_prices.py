"""Prices that are imported while a gateway runs price the calls from then on; those before stay as they are."""

import os
import pathlib
import subprocess
import sys

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway
from tests.support.simulator import running as simulated

pytestmark = pytest.mark.integration

ASK = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
UUSD_PER_HOUR = 14_500_000


def weighbridge(front: gateway.Gateway, *words: str) -> None:
    command = [sys.executable, "-m", "gateway.cli", *words, "-c", str(front.config_file)]
    env = os.environ | {"PYTHONPATH": str(gateway.ROOT)}
    subprocess.run(command, cwd=gateway.ROOT, env=env, check=True, capture_output=True, timeout=60)


def test_an_import_prices_the_next_call_and_no_earlier_one(tmp_path: pathlib.Path) -> None:
    with simulated(Settings(instance_type="inf2.48xlarge", model="m", slots=8)) as server:
        backend = {
            "name": "b1", "url": server.url, "model": "m", "instance_type": "inf2.48xlarge", "slots": 8,
            "region": "eu-west-1",
        }  # fmt: skip
        with gateway.running(tmp_path, [backend]) as front:
            front.post("/v1/chat/completions", ASK).read()
            prices = tmp_path / "prices.csv"
            prices.write_text(
                "instance_type,region,usd_per_hour,source\ninf2.48xlarge,eu-west-1,14.5,our list\n"
            )
            weighbridge(front, "prices", "import", str(prices))
            gateway.eventually(lambda: "imported prices taken up" in front.log.read_text())
            front.post("/v1/chat/completions", ASK).read()
            first, second = front.lines("call")
            (event,) = [line for line in front.lines("event") if line["data"].get("what") == "import"]
    assert (first["cost_pusd"], first["unpriced_reason"]) == (None, "instance_price_unknown")
    exact = UUSD_PER_HOUR * second["slot_ns"] / (3_600_000 * 8)
    assert abs(second["cost_pusd"] - exact) <= 1
    assert second["price_basis"]["source"] == "our list"
    assert (event["topic"], event["data"]["added"]) == ("prices", "1")
