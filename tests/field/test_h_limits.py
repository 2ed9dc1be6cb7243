"""Field reports on limits: exact at the line, over windows, workers and replicas; nothing leaks or is taken twice.

Each test has a tenant of its own. Rates are GCRA: what was not used for a minute may come at once, then one each
60 s ÷ limit; what is counted here leaves room for what came back while the test ran.
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import stores
from tests.support.gateway import Gateway, eventually, running
from tests.support.processes import descendants
from tests.support.rawbackend import Asked, Scripted, sized
from tests.support.stage import (
    ANSWER,
    CARD,
    ROLE,
    SIZED,
    STANDARD,
    Endless,
    R,
    backend,
    content,
    cut,
    framed,
    opening,
    u,
)

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
TENANTS: dict[str, dict] = {
    "line": {"limits": {"requests_per_minute": 5}},
    "tokens": {"limits": {"tokens_per_minute": 100}},
    "edge": {"limits": {"requests_per_minute": 120}},
    "leak": {"limits": {"concurrency": 2}},
    "eaten": {"limits": {"requests_per_minute": 5, "concurrency": 1}},
    "large": {"limits": {"tokens_per_minute": 1000}},
    "tightest": {"limits": {"requests_per_minute": 9}, "key": {"limits": {"requests_per_minute": 7}}},
    "asking": {
        "limits": {"concurrency": 3, "budgets": [{"usd": "1", "per": "day"}]},
        "key": {"limits": {"requests_per_minute": 9}},
    },
    "free": {},
}
SECONDS_EACH = 12.0
"""Of `line`: one more comes back in so long."""
NEVER_S = 60.0


def exactly(tokens: int, prompt: int) -> tuple[bytes, bytes]:
    """A request that is expected to take so many tokens, and an answer that says so. prompt: of its body."""
    bound = tokens - prompt
    body = json.dumps({"model": "m1", "messages": [], "max_tokens": bound}).encode()
    body = body[:-1] + b" " * (4 * prompt - len(body)) + b"}"
    assert len(body) // 4 == prompt
    return body, sized(json.dumps(ANSWER | {"usage": u(prompt, bound)}).encode())


class Front:
    """A gateway, its one backend, and answers in a few words."""

    def __init__(self, gateway: Gateway, b1: Scripted) -> None:
        self.gateway, self.b1 = gateway, b1

    def ask(self, tenant: str, body: object = R) -> tuple[int, dict[str, str], dict]:
        answer = self.gateway.post(CHAT, body, tenant=tenant)
        headers = {name.lower(): value for name, value in answer.getheaders()}
        text = answer.read()
        return answer.status, headers, json.loads(text) if text[:1] == b"{" else {}

    def statuses(self, tenant: str, times: int, body: object = R) -> list[int]:
        return [self.ask(tenant, body)[0] for _ in range(times)]

    def at_once(self, tenant: str, times: int, body: object = R) -> list[int]:
        with ThreadPoolExecutor(times) as pool:
            return list(pool.map(lambda _: self.ask(tenant, body)[0], range(times)))

    def stream(self, tenant: str) -> http.client.HTTPResponse:
        return self.gateway.post(CHAT, R | {"stream": True}, tenant=tenant)

    def usage(self, tenant: str) -> dict:
        status, body = self.gateway.get("/v1/usage", self.gateway.keys[tenant])
        assert status == 200
        return json.loads(body)

    def listed(self, tenant: str, path: str) -> dict[str, str]:
        """Headers of a list of models, or of one."""
        authorization = {"authorization": f"Bearer {self.gateway.keys[tenant]}"}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=10)
        ) as connection:
            connection.request("GET", path, headers=authorization)
            answer = connection.getresponse()
            answer.read()
        assert answer.status == 200
        return {name.lower(): value for name, value in answer.getheaders()}

    def refused(self, tenant: str) -> list[dict]:
        return [line for line in self.gateway.lines("refused") if line["tenant"] == tenant]


@pytest.fixture(scope="module", params=["direct", "plain"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    b1 = Scripted(SIZED)
    with (
        contextlib.ExitStack() as stack,
        running(
            tmp_path_factory.mktemp("limits"), [backend("b1", b1.port, instance_type="inf2.xlarge")],
            tenants=tuple(TENANTS), of_tenants=TENANTS, rate_cards=[CARD], driver=request.param, attempts_max=1,
            timeouts={"connect_s": 1.0, "first_event_s": 1.0, "between_events_s": 1.0, "sized_answer_s": 1.0},
        ) as gateway,
    ):  # fmt: skip
        stack.callback(b1.stop)
        gateway.wait_checked()
        yield Front(gateway, b1)


@pytest.fixture
def front(built: Front) -> Front:
    """With its backend as new."""
    built.b1.asked.clear()
    built.b1.script.clear()
    built.b1.default = SIZED
    return built


# -- BR-091


def test_br_091_the_last_one_that_may_is_served_and_the_next_is_not(front: Front) -> None:
    answers = [front.ask("line") for _ in range(7)]
    assert [status for status, _, _ in answers] == [200] * 5 + [429] * 2
    assert [headers["x-ratelimit-limit-requests"] for _, headers, _ in answers] == ["5"] * 7
    assert [headers["x-ratelimit-remaining-requests"] for _, headers, _ in answers] == list("4321000")
    assert len(front.b1.asked) == 5
    for _, headers, body in answers[5:]:
        assert (body["error"]["code"], body["error"]["type"]) == ("rate_limit_exceeded", "requests")
        assert 0 < int(headers["retry-after-ms"]) <= SECONDS_EACH * 1000
        assert headers["retry-after"] == str(-(-int(headers["retry-after-ms"]) // 1000))
        assert headers["x-should-retry"] == "true"
        assert "x-weighbridge-call-id" not in headers
    lines = eventually(lambda: len(found := front.refused("line")) == 2 and found)
    assert {line["limit"] for line in lines} == {"requests_per_minute of the tenant: 5"}


def test_br_091_tokens_are_counted_to_the_last_one_too(front: Front) -> None:
    body, front.b1.default = exactly(50, prompt=20)
    answers = [front.ask("tokens", body) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert [headers["x-ratelimit-remaining-tokens"] for _, headers, _ in answers[:1]] == ["50"]
    assert answers[2][2]["error"]["type"] == "tokens"
    assert "x-ratelimit-limit-requests" not in answers[2][1]


def test_br_091_the_tightest_limit_is_the_one_that_is_told_of(front: Front) -> None:
    status, headers, _ = front.ask("tightest")
    assert (status, headers["x-ratelimit-limit-requests"]) == (200, "7")
    assert headers["x-ratelimit-remaining-requests"] == "6"


def test_br_091_who_has_no_limit_hears_of_none(front: Front) -> None:
    status, headers, _ = front.ask("free")
    assert status == 200
    assert not any(name.startswith("x-ratelimit") for name in headers)


def test_a_key_can_ask_where_it_stands(front: Front) -> None:
    front.ask("asking")

    def folded() -> dict | None:  # limits are asked for before what is spent, and a fold may come between
        found = front.usage("asking")
        spent = found["spend"]["day"]["tenant_usd"], found["limits"][0]["budgets"][0]["spent_usd"]
        return found if spent == ("0.000020000000",) * 2 else None

    usage = eventually(folded)
    assert usage["spend"]["month"]["tenant_usd_by_model"] == {"m1": "0.000020000000"}
    assert usage["limits_checked"]
    own, key = usage["limits"]
    assert (own["of"], own["budgets"][0]["spent_usd"]) == ("the tenant", "0.000020000000")
    assert own["budgets"][0]["remaining_usd"] == "0.999980000000"
    assert own["concurrency"] == {"limit": 3, "remaining": 3}
    assert key["of"] == f"the key {usage['key_id']}"
    assert key["requests_per_minute"]["limit"] == 9
    assert key["requests_per_minute"]["remaining"] in (8, 9)  # one comes back in 7 s
    assert front.usage("free")["limits"] == []


# -- BR-092


def test_br_092_no_edge_of_a_window_lets_a_second_burst_through(front: Front) -> None:
    began_s = time.monotonic()
    served = front.statuses("edge", 150).count(200)
    assert 120 <= served <= 120 + 2 * (time.monotonic() - began_s) + 1
    last = 0
    while time.monotonic() - began_s < 2.0 or last != 200:  # it goes on at the pace at which they come back
        last = front.ask("edge")[0]
        served += last == 200
    assert 120 < served <= 120 + 2 * (time.monotonic() - began_s) + 1


# -- BR-094


def hang(front: Front) -> None:
    front.b1.script = [hung]
    assert front.ask("leak")[0] == 504


async def hung(_asked: Asked, reader: object, _writer: object) -> None:
    await reader.read()  # type: ignore[attr-defined]  # until the gateway has gone


def leave_before_bytes(front: Front) -> None:
    front.b1.script = [hung]
    with raw(front.gateway, "leak"):
        eventually(lambda: len(front.b1.asked) == 1)


def leave_mid_stream(front: Front) -> None:
    front.b1.script = [Endless(opening(ROLE), framed(content("a")))]
    answer = front.stream("leak")
    answer.read(10)
    answer.close()


def reset_mid_stream(front: Front) -> None:
    front.b1.script = [cut(opening(*STANDARD[:3]), reset=True)]
    front.stream("leak").read()


def no_json(front: Front) -> None:
    front.b1.script = [sized(b"{")]
    assert front.ask("leak")[0] == 502


def fail(front: Front) -> None:
    front.b1.script = [sized(b"{}", "500 Internal Server Error")]
    assert front.ask("leak")[0] == 502


def refuse(front: Front) -> None:
    assert front.ask("leak", R | {"n": "two"})[0] == 400


@contextlib.contextmanager
def raw(gateway: Gateway, tenant: str) -> Iterator[socket.socket]:
    """A request whose client does not wait for the answer."""
    body = json.dumps(R).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.keys[tenant]}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(head.encode() + body)
        yield client


@pytest.mark.parametrize(
    "fault", [fail, hang, leave_before_bytes, leave_mid_stream, reset_mid_stream, no_json, refuse]
)
def test_br_094_a_place_comes_back_however_the_call_ends(
    front: Front, fault: Callable[[Front], None]
) -> None:
    for _ in range(3):  # more than there are
        fault(front)
        front.b1.asked.clear()
    assert eventually(lambda: front.at_once("leak", 2) == [200, 200], within_s=5.0)


# -- BR-095


def test_br_095_who_is_refused_by_one_limit_has_taken_nothing_of_another(front: Front) -> None:
    front.b1.script = [Endless(opening(ROLE), framed(content("a")))]
    streaming = front.stream("eaten")
    streaming.read(10)
    for _ in range(10):
        status, headers, body = front.ask("eaten")
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "concurrency" in body["error"]["message"]
        assert headers["x-ratelimit-remaining-requests"] == "4"
    streaming.close()
    for faulty, status in ((R | {"n": "two"}, 400), (R | {"model": "nobody"}, 404)):
        refused = front.ask("eaten", faulty)
        assert (refused[0], refused[1]["x-ratelimit-remaining-requests"]) == (status, "4")
    for path in ("/v1/models", "/v1/models/m1"):
        assert front.listed("eaten", path)["x-ratelimit-remaining-requests"] == "4"
    eventually(lambda: front.ask("eaten")[0] == 200)
    assert front.statuses("eaten", 4) == [200, 200, 200, 429]
    lines = eventually(
        lambda: len(found := [one for one in front.refused("eaten") if one["limit"]]) >= 11 and found
    )
    assert {line["limit"].partition(" ")[0] for line in lines} == {"concurrency", "requests_per_minute"}


# -- BR-097


def test_br_097_a_guess_is_never_too_large_and_a_bound_of_the_clients_may_be(front: Front) -> None:
    long = R | {"messages": [{"role": "user", "content": "x" * 8_000}]}
    status, headers, _ = front.ask("large", long)  # guessed at 2,000 tokens
    assert status == 200
    status, headers, body = front.ask("large", R | {"max_tokens": 3_000})
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "never" in body["error"]["message"]
    assert headers.keys() & {"retry-after", "retry-after-ms"} == set()
    assert headers["x-should-retry"] == "false"


# -- a law that is broken is found


class Fleet:
    """Two gateways of two workers before one backend and one store."""

    def __init__(self, gateways: list[Gateway], b1: Scripted) -> None:
        self.gateways, self.b1 = gateways, b1

    def statuses(self, tenant: str, times: int, body: bytes) -> list[int]:
        def ask(number: int) -> int:
            answer = self.gateways[number % 2].post(CHAT, body, tenant=tenant)
            answer.read()
            return answer.status

        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(ask, range(times)))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    b1 = Scripted(SIZED)
    tenants: dict[str, dict] = {
        "requests": {"limits": {"requests_per_minute": 20}},
        "tokens": {"limits": {"tokens_per_minute": 400}},
    }
    with contextlib.ExitStack() as stack:
        stack.callback(b1.stop)
        store = tmp_path_factory.mktemp("store")
        url = f"unix://{store / 'sock'}"
        stack.enter_context(
            stores.process(stores.valkey_binary(), store, {"port": "0", "unixsocket": str(store / "sock")})
        )
        eventually(lambda: stores.answers(url))
        gateways = []
        for name in ("one", "two"):
            options: dict = {"redis": {"url": url}, "workers": 2, "of_tenants": tenants}
            gateway = stack.enter_context(
                running(
                    tmp_path_factory.mktemp(name),
                    [backend("b1", b1.port, slots=400)],
                    tenants=tuple(tenants),
                    **options,
                )
            )
            if gateways:  # the same keys at both
                config = json.loads(gateway.config_file.read_text())
                config["tenants"] = json.loads(gateways[0].config_file.read_text())["tenants"]
                gateway.config_file.write_text(json.dumps(config))
                gateway.stop()
                gateway.restart()
                gateway.wait_ready()
                gateway.keys = gateways[0].keys
            gateways.append(gateway)
        for gateway in gateways:
            gateway.wait_checked()
        yield Fleet(gateways, b1)


@pytest.mark.parametrize("tenant", ["requests", "tokens"])
def test_br_098_all_workers_of_all_replicas_have_one_count(fleet: Fleet, tenant: str) -> None:
    fleet.b1.asked.clear()
    body, fleet.b1.default = exactly(20, prompt=16)
    began_s = time.monotonic()
    statuses = fleet.statuses(tenant, 200, body)
    back = int((time.monotonic() - began_s) / 3)
    assert set(statuses) == {200, 429}
    assert 20 <= statuses.count(200) <= 20 + back
    assert len(fleet.b1.asked) == statuses.count(200)


def worker_of(gateway: Gateway) -> int:
    """The process of its one worker."""
    commands = {
        pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(gateway.process.pid)
    }
    (worker,) = [pid for pid, command in commands.items() if b"gateway.processes.worker" in command]
    return worker


def test_br_094_a_killed_worker_keeps_no_place(tmp_path: pathlib.Path) -> None:
    b1 = Scripted(SIZED)
    tenants = {"acme": {"limits": {"concurrency": 2}}}
    with (
        contextlib.closing(contextlib.ExitStack()) as stack,
        running(tmp_path, [backend("b1", b1.port)], of_tenants=tenants) as gateway,
    ):
        stack.callback(b1.stop)
        gateway.wait_checked()
        b1.script = [hung, hung]
        for _ in range(2):
            stack.enter_context(raw(gateway, "acme"))
        eventually(lambda: len(b1.asked) == 2)
        front = Front(gateway, b1)
        assert front.ask("acme")[0] == 429
        os.kill(worker_of(gateway), signal.SIGKILL)
        gateway.wait_ready()
        assert eventually(lambda: front.at_once("acme", 2) == [200, 200], within_s=NEVER_S)
