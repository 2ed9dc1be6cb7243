"""schemathesis reads /openapi.json and asks what nobody would: every answer must be one that the document allows."""

import json
import pathlib
import re
import subprocess

import pytest

from tests.clients import environment
from tests.clients.scene import Scene

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

METHODS = {"get", "post", "put", "patch", "delete", "head", "options"}
EXAMPLES = 25
"""Of each operation, beside those that are made to cover each bound; a run takes some ten seconds."""

NOT_CHECKED = "positive_data_acceptance"
"""The document says what the gateway acts on. The server behind it needs more, and refuses what lacks it."""


def test_no_request_gets_an_answer_that_the_document_does_not_have(
    scene: Scene, tmp_path: pathlib.Path
) -> None:
    before = len(scene.gateway.lines("call"))
    command = [
        str(environment.default().bin / "schemathesis"), "run", f"http://127.0.0.1:{scene.gateway.port}/openapi.json",
        "--header", f"Authorization: Bearer {scene.gateway.keys['acme']}",
        "--checks", "all", "--exclude-checks", NOT_CHECKED, "--max-examples", str(EXAMPLES),
        "--phases", "examples,coverage,fuzzing", "--seed", "1", "--no-color",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr
    _, page = scene.gateway.get("/openapi.json", scene.gateway.keys["acme"])
    paths = json.loads(page)["paths"]
    del paths["/openapi.json"]  # schemathesis does not ask where it got the document from
    operations = sum(len(methods.keys() & METHODS) for methods in paths.values())
    assert operations >= 25
    assert re.findall(r"Selected: \S+", run.stdout) == [f"Selected: {operations}/{operations}"]
    assert len(scene.gateway.lines("call")) > before
    log = scene.gateway.log.read_text()
    assert "fault" not in log, log[-2_000:]
