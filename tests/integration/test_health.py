"""Readiness tells the truth: a backend that isn't there yet, one that serves something else, and when it comes."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.test_faces import ASK, CHAT
from tests.support.gateway import Gateway, eventually, running
from tests.support.ports import free_port
from tests.support.rawbackend import Scripted, sized

pytestmark = pytest.mark.integration

ASK_M1 = ASK | {"model": "m1"}


@contextlib.contextmanager
def before(directory: pathlib.Path, port: int, **more: object) -> Iterator[Gateway]:
    """A gateway before one backend, which need not be there."""
    backends = [{"name": "a", "url": f"http://127.0.0.1:{port}", "model": "m1"} | more]
    with running(directory, backends, ready=False) as gateway:
        eventually(lambda: gateway.alive(), within_s=30)
        yield gateway


def status(gateway: Gateway) -> tuple[int, str, str]:
    code, body = gateway.get("/readyz")
    (backend,) = json.loads(body)["backends"]
    return code, backend["state"], backend["reason"]


def test_a_backend_that_is_not_up_yet_is_starting_and_gets_no_call(tmp_path: pathlib.Path) -> None:
    port = free_port()
    with before(tmp_path, port) as gateway:
        assert gateway.get("/healthz")[0] == 200
        code, state, reason = eventually(lambda: status(gateway) if "refused" in status(gateway)[2] else None)
        assert (code, state) == (503, "starting")
        assert str(port) not in reason
        answer = gateway.post("/v1/chat/completions", ASK_M1)
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "no_backend")
        assert int(answer.headers["retry-after"]) > 0
        assert gateway.lines("admitted") == []
        late = Scripted(sized(CHAT), port=port)
        try:
            eventually(lambda: status(gateway)[:2] == (200, "ready"))
            assert late.asked == []
            assert gateway.post("/v1/chat/completions", ASK_M1).status == 200
        finally:
            late.stop()


def test_a_server_of_another_model_is_not_ready_and_says_why(tmp_path: pathlib.Path) -> None:
    other = Scripted(sized(CHAT))
    try:
        with before(tmp_path, other.port, model="llama") as gateway:
            wanted = (503, "starting", "it does not serve llama; it serves m1")
            eventually(lambda: status(gateway) == wanted)
            assert gateway.post("/v1/chat/completions", ASK_M1).status == 503
            assert other.asked == []
    finally:
        other.stop()
