"""What a running gateway tells besides calls: what changed since its last start."""

import hashlib
import json
import pathlib

import pytest

from tests.support import gateway
from tests.support.gateway import Gateway, eventually

pytestmark = pytest.mark.integration

NOWHERE = {
    "name": "b1",
    "url": "http://127.0.0.1:1",
    "model": "m",
    "instance_type": "inf2.48xlarge",
    "slots": 8,
}
CARD = {"family": "inf2", "prompt": "1", "completion": "2", "date": "2026-11-01", "source": "ours"}


def told(front: Gateway) -> list[dict]:
    return [line for line in front.lines("event") if line["topic"] in ("config", "prices")]


def wait_for(front: Gateway, starts: int) -> None:
    """Until so many workers have been ready, over all its starts."""
    eventually(lambda: front.log.read_text().count("worker ready") == starts, within_s=gateway.READY_S)


def restart(front: Gateway, starts: int, **more: object) -> None:
    """Start it once more with this laid over its configuration, and wait for the workers' lines."""
    front.stop()
    config = json.loads(front.config_file.read_text()) | more
    front.config_file.write_text(json.dumps(config))
    front.restart()
    wait_for(front, starts)


def test_each_start_tells_what_changed_once(tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [NOWHERE], rate_cards=[CARD], workers=2, ready=False) as front:
        wait_for(front, 2)
        first, card = told(front)
        assert first["data"].keys() == {"digest"}
        assert card["data"]["of"] == "m1/inf2@2026-11-01"
        restart(front, 4)
        dearer = {
            **json.loads(front.config_file.read_text())["models"][0],
            "rate_cards": [CARD | {"prompt": "9"}],
        }
        restart(front, 6, models=[dearer], drain_s=1)
        _, _, changed, price = sorted(told(front), key=lambda line: (line["at_ns"], line["seq"]))
        assert changed["data"]["changed"] == "drain_s, models[m1].rate_cards"
        assert json.loads(price["data"]["before"])["prompt"] == "1"
        assert json.loads(price["data"]["after"])["prompt"] == "9"
        digests = [line["config_digest"] for line in front.lines("start")]
        assert digests.count(changed["data"]["digest"]) == 2
        assert digests.count(changed["data"]["before"]) == 4
        kept = front.state_dir / "config.last.json"
        assert f"sha256:{hashlib.sha256(kept.read_bytes()).hexdigest()}" == changed["data"]["digest"]
        assert kept.stat().st_mode & 0o777 == 0o600
        restart(front, 8)
        assert len(told(front)) == 4
