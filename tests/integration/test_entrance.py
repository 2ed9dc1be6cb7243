"""Who is let in, by either driver: guesses by address, clients behind proxies, pages of strangers."""

import contextlib
import http.client
import json
import pathlib
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.support import gateway, mutants
from tests.support.gateway import Gateway, eventually
from tests.support.ports import free_port

pytestmark = pytest.mark.integration
ASK = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
PER_MINUTE = 5
PROXY = "127.0.0.1/32"


def running(
    tmp_path: pathlib.Path, driver: str, mutant: str | None = None
) -> contextlib.AbstractContextManager[Gateway]:
    """A gateway whose clients all come by a proxy on this machine."""
    b1 = {"name": "b1", "url": f"http://127.0.0.1:{free_port()}", "model": "m1", "slots": 4}
    return gateway.running(
        tmp_path, [b1], driver=driver, auth={"failures_per_minute": PER_MINUTE}, ready=False,
        server={"trusted_proxies": [PROXY]}, ops={"listen": f"127.0.0.1:{free_port()}"},
        env=mutants.environment(mutant) if mutant else None,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["direct", "plain"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("entrance"), request.param) as one:
        eventually(one.alive, within_s=60)
        yield one


def ask(
    front: Gateway, path: str, key: str | None, *forwarded: str, host: str | None = None, port: int | None = None,
    method: str = "POST", body: object = None,
) -> tuple[int, dict[str, str], dict]:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port or front.port, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=host is not None)
        if host is not None:
            connection.putheader("host", host)
        if key is not None:
            connection.putheader("authorization", f"Bearer {key}")
        for one in forwarded:
            connection.putheader("x-forwarded-for", one)
        data = json.dumps(ASK if body is None else body).encode() if method == "POST" else b""
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), json.loads(answer.read() or b"{}")


CHAT = "/v1/chat/completions"


def guesses_are_bounded(front: Gateway, address: str) -> None:
    """So many wrong keys of an address are heard; what a client writes before it does not make it another."""
    statuses = [
        ask(front, CHAT, f"wb-guess-{n}", f"198.51.100.{n}, {address}")[0] for n in range(PER_MINUTE + 3)
    ]
    assert statuses == [401] * PER_MINUTE + [429] * 3
    status, headers, body = ask(front, "/v1/models", "wb-guess", address, method="GET")
    assert (status, body["error"]["code"], headers["x-should-retry"]) == (429, "rate_limit_exceeded", "true")
    assert 1 <= int(headers["retry-after"]) <= 60 // PER_MINUTE


def test_guesses_of_an_address_are_bounded_and_lock_nobody_out(front: Gateway) -> None:
    guesses_are_bounded(front, "203.0.113.1")
    key = front.keys["acme"]
    assert (
        ask(front, CHAT, key, "203.0.113.1")[0] == 503
    )  # the good key of a neighbour: there is just no server
    assert ask(front, CHAT, "wb-guess", "203.0.113.2")[0] == 401  # another address
    assert ask(front, "/admin/v1/keys", "wb-guess", "203.0.113.1", method="GET")[0] == 429
    told = eventually(
        lambda: [
            line for line in front.lines("event")
            if line["topic"] == "sign_in_refused" and line["data"]["status"] == "429"
        ]
    )  # fmt: skip
    assert told[0]["data"]["face"] == "admin"
    refused = [line for line in front.lines("refused") if line["status"] == 429]
    assert {line["reason"] for line in refused} == {"TooManyAttempts"}


def test_a_key_that_is_bound_to_a_network_is_so_behind_the_proxy(front: Gateway) -> None:
    made = {"tenant": "acme", "networks": ["203.0.113.0/24"]}
    status, _, body = ask(front, "/admin/v1/keys", front.keys["acme"], body=made)
    assert status == 201
    key = body["key"]
    assert ask(front, CHAT, key, "203.0.113.7")[0] == 503
    assert ask(front, CHAT, key, "203.0.113.7, 198.51.100.1")[0] == 403
    assert ask(front, CHAT, key, "203.0.113.7", "198.51.100.1")[0] == 403
    assert ask(front, CHAT, key)[0] == 403  # the proxy itself
    assert ask(front, CHAT, key, "nonsense")[0] == 403


def test_no_page_of_a_stranger_reaches_the_admin_face(front: Gateway) -> None:
    key = front.keys["acme"]
    ops = int(json.loads(front.config_file.read_text())["ops"]["listen"].rpartition(":")[2])
    for port in (front.port, ops):
        for host, status in (("evil.example", 421), (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200)):
            found, _, body = ask(front, "/admin/v1/tenants", key, host=host, port=port, method="GET")
            assert found == status, body


def test_a_wrong_key_takes_as_long_as_any_other(front: Gateway) -> None:
    """By nothing of the answer's time can it be told how much of a key is right; the hash hides where it differs."""
    key = front.keys["acme"]
    near, far = key[:-1] + ("a" if key[-1] != "a" else "b"), "wb-" + "a" * 64
    times: dict[str, list[float]] = {near: [], far: []}
    for number in range(60):
        for one in (near, far) if number % 2 else (far, near):
            began_s = time.perf_counter()
            ask(front, "/v1/models", one, f"203.0.113.{number}", method="GET")
            times[one].append(time.perf_counter() - began_s)
    medians = [statistics.median(found) for found in times.values()]
    assert abs(medians[0] - medians[1]) < 0.5 * max(medians)


@pytest.mark.parametrize("mutant", ["proxies_believed", "attempts_unlimited"])
def test_an_entrance_that_breaks_a_law_is_found(tmp_path: pathlib.Path, mutant: str) -> None:
    with running(tmp_path, "direct", mutant) as front:
        eventually(front.alive, within_s=60)
        with pytest.raises(AssertionError):
            guesses_are_bounded(front, "203.0.113.1")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/usage", "/openapi.json", "/metrics"])
def test_a_key_that_is_refused_at_an_ordinary_endpoint_is_told(front: Gateway, path: str) -> None:
    def told() -> int:
        lines = front.lines("event")
        return sum(
            int(line["data"]["count"])
            for line in lines
            if line["topic"] == "sign_in_refused" and line["data"]["face"] == "api"
        )

    before = told()
    statuses = [ask(front, path, "wb-guessed", "198.51.100.77", method="GET")[0] for _ in range(3)]
    assert set(statuses) <= {401, 429}
    assert ask(front, path, None, method="GET")[0] == 401
    eventually(lambda: told() >= before + 4)  # what others were refused just before may come to it
