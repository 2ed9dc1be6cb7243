"""Somebody who sends what must be refused: the journal stays small, and every request is counted."""

import pathlib
import socket
import threading

import pytest

from tests.support import mutants
from tests.support.gateway import eventually
from tests.support.stage import Stage, staged

pytestmark = pytest.mark.integration

REQUESTS = 20_000
CONNECTIONS = 8
AT_ONCE = 50
UNKNOWN_KEY = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer wb-unknown\r\n"
    b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
)
UNBOUNDED = {"failures_per_minute": 1_000_000}
"""All of these come from one address, and are to be refused for their keys."""


def send(port: int, requests: int) -> None:
    """So many on one connection, some at once, each answer read."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock, sock.makefile("rb") as answers:
        for _ in range(requests // AT_ONCE):
            sock.sendall(UNKNOWN_KEY * AT_ONCE)
            for _ in range(AT_ONCE):
                assert answers.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
                length = 0
                while (line := answers.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                answers.read(length)


def counted(stage: Stage) -> int:
    return sum(line["count"] for line in stage.gateway.lines("refused"))


def test_20_000_refusals_are_a_few_lines_and_all_counted(tmp_path: pathlib.Path) -> None:
    with staged(tmp_path, auth=UNBOUNDED) as stage:
        senders = [
            threading.Thread(target=send, args=(stage.gateway.port, REQUESTS // CONNECTIONS))
            for _ in range(CONNECTIONS)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        eventually(lambda: counted(stage) == REQUESTS)
        assert stage.count("weighbridge_calls_total", outcome="refused") == REQUESTS
        lines = stage.gateway.lines("refused")
        seconds = {line["at_ns"] // 1_000_000_000 for line in lines}
        assert len(lines) <= 11 * (len(seconds) + 1)
        stage.check()
        # What is not told yet when it ends is told then.
        send(stage.gateway.port, AT_ONCE)
        assert stage.gateway.stop() == 0
        assert counted(stage) == REQUESTS + AT_ONCE


@pytest.mark.parametrize("mutant", ["refusals_forgotten", "refusals_unfolded"])
def test_the_laws_see_refusals_that_are_not_counted_or_not_folded(
    tmp_path: pathlib.Path, mutant: str
) -> None:
    with staged(tmp_path, env=mutants.environment(mutant), auth=UNBOUNDED) as stage:
        send(stage.gateway.port, 1_000)
        assert stage.gateway.stop() == 0
        lines = stage.gateway.lines("refused")
        seconds = {line["at_ns"] // 1_000_000_000 for line in lines}
        is_counted, is_small = counted(stage) == 1_000, len(lines) <= 11 * (len(seconds) + 1)
        assert (is_counted, is_small) == ((False, True) if mutant == "refusals_forgotten" else (True, False))
