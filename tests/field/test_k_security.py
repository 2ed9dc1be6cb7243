"""Field reports on secrets: keys, content and addresses stay where they belong; a key that is gone opens nothing."""

import contextlib
import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support import gateway, stores
from tests.support.gateway import Gateway, eventually
from tests.support.rawbackend import Asked, Scripted, sized
from tests.support.stage import ANSWER, PAIR, RS, SIZED, STANDARD, R, Stage, staged, stream
from tests.support.stores import Running

pytestmark = pytest.mark.integration

BACKEND_SECRETS = ("bk-SECRET-one", "bk-SECRET-two")
WRONG = "sk-test-WRONGKEY123456"
BOUND_S = 1.0
"""Within so long a revoked key opens nothing on any gateway."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The field tests' stage with a key for each backend."""
    directory = tmp_path_factory.mktemp("secrets")
    files = []
    for name, secret in zip(("b1", "b2"), BACKEND_SECRETS, strict=True):
        file = directory / f"{name}.key"
        file.write_text(secret + "\n")
        files.append(str(file))
    with staged(directory, key_files=(files[0], files[1])) as stage:
        yield stage


def everything(stage: Stage) -> bytes:
    """All that the gateway has written, and what it shows."""
    front = stage.gateway
    files = [path for path in front.state_dir.rglob("*") if path.is_file() and path.suffix != ".pem"]
    _, metrics = front.get("/metrics", front.keys["acme"])
    return b"\n".join([front.log.read_bytes(), metrics, *(path.read_bytes() for path in files)])


def raw(stage: Stage, head: str, body: bytes = b"") -> bytes:
    """Send these very bytes; the answer, whole."""
    with socket.create_connection(("127.0.0.1", stage.gateway.port), timeout=10) as connection:
        connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


def test_br_112_no_key_is_written_or_said_anywhere(stage: Stage) -> None:
    key = stage.gateway.keys["acme"]
    refused = stage.post(R, authorization=f"Bearer {WRONG}")
    assert refused.status == 401
    assert WRONG not in refused.body.decode()
    stage.post(R, x_api_key=WRONG, authorization="")
    head = f"GET /v1/models?api_key={WRONG} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}"
    assert b" 200 " in raw(stage, head)

    async def echoing(asked: Asked, _reader: object, writer: object) -> None:
        body = json.dumps({"error": asked.headers["authorization"]}).encode()
        writer.write(sized(body, "500 Internal Server Error"))  # type: ignore[attr-defined]
        await writer.drain()  # type: ignore[attr-defined]

    stage.b1.script.append(echoing)
    failed = stage.post(R)
    assert failed.status == 502
    assert BACKEND_SECRETS[0] not in failed.body.decode()
    written = everything(stage)
    for secret in (key, WRONG, *BACKEND_SECRETS):
        assert secret.encode() not in written


def test_br_113_nothing_that_a_client_sends_picks_an_address(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as evil:
        evil.settimeout(0.5)
        url = f"http://127.0.0.1:{evil.getsockname()[1]}/"
        fields = {
            "api_base": url, "base_url": url, "api_key": "x", "extra_body": {"api_base": url},
            "metadata": {"api_base": url}, "fallbacks": [{"model": "m1", "api_base": url}],
            "user_config": {"model_list": [{"api_base": url}]}, "url": url,
        }  # fmt: skip
        answer = stage.post(R | fields, x_backend_url=url, x_forwarded_host=url)
        assert answer.status == 200
        (asked,) = stage.b1.asked
        assert json.loads(asked.body)["api_base"] == url  # passed as what it is: nothing that is known here
        for name in (url, "http://169.254.169.254/latest/meta-data", "b1", "../m1", "m1@evil", "//evil/m1"):
            assert stage.post(R | {"model": name}).status == 404
        for status in ("302 Found", "307 Temporary Redirect"):
            head = f"HTTP/1.1 {status}\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n"
            stage.b1.script.append(head.encode())
            assert stage.post(R).status == 502
        with pytest.raises(TimeoutError):
            evil.accept()


@pytest.mark.parametrize(
    "given",
    ["x" * 10_000, "a\tb", "a%0d%0aSet-Cookie:x", "\xff\xfe", '{"x":1}', "a b", "\u00e9", ""],
)
def test_br_116_an_id_is_a_plain_one_or_ours(stage: Stage, given: str) -> None:
    body = json.dumps(R | {"user": 'x\n{"kind":"call","tenant":"T2"}'}).encode()
    key = stage.gateway.keys["acme"]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {given}"
    )
    answer = raw(stage, head, body)
    lines = answer.split(b"\r\n\r\n")[0].split(b"\r\n")
    assert b" 200 " in lines[0]
    headers = dict(line.split(b": ", 1) for line in lines[1:])
    assert b"set-cookie" not in {name.lower() for name in headers}
    request_id = headers[b"x-request-id"].decode()
    assert request_id.startswith("req-")
    record = stage.record(headers[b"x-weighbridge-call-id"].decode())
    assert (record["request_id"], record["tenant"]) == (request_id, "acme")
    for line in stage.gateway.log.read_text().splitlines():
        json.loads(line)
    (asked,) = stage.b1.asked
    assert asked.headers["x-request-id"] == request_id


def test_br_116_a_plain_id_is_kept(stage: Stage) -> None:
    assert stage.post(R, x_request_id="Order-66._x").headers["x-request-id"] == "Order-66._x"


def test_br_118_a_backend_gets_its_own_key_and_nothing_of_the_clients(stage: Stage) -> None:
    key = stage.gateway.keys["acme"]
    stage.b1.script.append(sized(b"{}", "500 Internal Server Error"))
    answer = stage.post(
        R | PAIR, cookie="s=1", x_api_key=key, x_amz_security_token="t", x_forwarded_for="1.2.3.4",
        x_tenant="globex", proxy_authorization="Basic eDp5",
    )  # fmt: skip
    assert answer.status == 200
    for one, secret in zip((stage.b1, stage.b2), BACKEND_SECRETS, strict=True):
        (asked,) = one.asked
        assert asked.headers["authorization"] == f"Bearer {secret}"
        allowed = {
            "host",
            "authorization",
            "content-type",
            "content-length",
            "accept",
            "x-request-id",
            "traceparent",
        }
        assert asked.headers.keys() <= allowed | {"accept-encoding", "user-agent", "connection"}
        assert key not in str(asked)
    assert stage.record(answer.call_id)["tenant"] == "acme"  # whatever a header says


def test_br_121_no_content_is_written_anywhere(stage: Stage) -> None:
    asked, said = "CANARY-7f3a", "CANARY-OUT"
    canary = R | {"messages": [{"role": "user", "content": asked}]}
    told = {
        "error": {
            "message": f"bad prompt: {asked}",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }
    answer = json.loads(json.dumps(ANSWER))
    answer["choices"][0]["message"]["content"] = said
    b1 = stage.b1
    b1.script += [
        sized(json.dumps(answer).encode()),
        sized(json.dumps(told).encode(), "400 Bad Request"),
        sized(json.dumps(told).encode(), "500 Internal Server Error"),
        stream(*STANDARD[:1], STANDARD[1].replace(b"he", said.encode()), *STANDARD[3:]),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n" + said.encode(),
    ]
    assert said.encode() in stage.post(canary).body
    refused = stage.post(canary)
    assert (refused.status, asked in refused.error["message"]) == (
        400,
        True,
    )  # its own words, to its own client
    assert stage.post(canary).status == 502
    assert said.encode() in stage.post(canary | RS | {"messages": canary["messages"]}).body
    stage.post(canary)
    assert stage.post(f'{{"model":"m1","messages":"{asked}",'.encode()).status == 400
    assert stage.post(json.dumps(canary | {"n": 0}).encode()).status == 400
    written = everything(stage)
    assert asked.encode() not in written
    assert said.encode() not in written


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway, Running]]:
    """Two gateways of one store, before one server."""
    directory = tmp_path_factory.mktemp("pair")
    b1 = Scripted(SIZED)
    with contextlib.ExitStack() as stack:
        stack.callback(b1.stop)
        store = stack.enter_context(stores.single(stores.valkey_binary(), directory / "store"))
        stack.enter_context(store)
        both = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            served = {"name": "b1", "url": f"http://127.0.0.1:{b1.port}", "model": "m1", "slots": 8}
            running = gateway.running(directory / name, [served], redis={"url": store.url})
            both.append(stack.enter_context(running))
        yield both[0], both[1], store


def ask(front: Gateway, method: str, path: str, key: str, body: object) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    with contextlib.closing(connection):
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_br_120_a_revoked_key_is_refused_everywhere_within_the_bound(
    pair: tuple[Gateway, Gateway, Running],
) -> None:
    one, two, _ = pair
    operator = one.keys["acme"]
    status, made = ask(one, "POST", "/admin/v1/keys", operator, {"tenant": "acme"})
    assert status == 201
    for each in (one, two):
        eventually(lambda each=each: ask(each, "POST", "/v1/chat/completions", made["key"], R)[0] == 200)
    answers: list[tuple[float, int]] = []
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.wait(0.1):
            began_s = time.monotonic()
            answers.append((began_s, ask(two, "POST", "/v1/chat/completions", made["key"], R)[0]))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        status, _ = ask(one, "POST", f"/admin/v1/keys/{made['id']}/revoke", operator, {})
        revoked_s = time.monotonic()
        assert status == 200
        eventually(
            lambda: [status for at_s, status in answers if at_s > revoked_s + 2 * BOUND_S], within_s=10
        )
    finally:
        stop.set()
        thread.join()
    late = [status for at_s, status in answers if at_s > revoked_s + BOUND_S]
    assert set(late) == {401}
    assert {status for at_s, status in answers if at_s < revoked_s} <= {200, 401}
    assert ask(one, "POST", "/v1/chat/completions", made["key"], R)[0] == 401
    mine = [line for line in two.lines("call") if line["key_id"] == made["id"]]
    assert {line["tenant"] for line in mine} == {"acme"}
    (told,) = [line for line in one.lines("directory") if line["change"] == "revoke"]
    assert told["actor"] == hashlib.sha256(operator.encode()).hexdigest()[:12]


def test_br_120_a_limit_that_is_lowered_holds_everywhere_within_the_bound(
    pair: tuple[Gateway, Gateway, Running],
) -> None:
    one, two, _ = pair
    operator = one.keys["acme"]
    ask(one, "POST", "/admin/v1/tenants", operator, {"name": "spender"})
    _, made = ask(one, "POST", "/admin/v1/keys", operator, {"tenant": "spender"})
    eventually(lambda: ask(two, "POST", "/v1/chat/completions", made["key"], R)[0] == 200)
    lowered = {"limits": {"requests_per_minute": 1}}
    assert ask(one, "PATCH", "/admin/v1/tenants/spender", operator, lowered)[0] == 200
    changed_s = time.monotonic()
    eventually(lambda: ask(two, "POST", "/v1/chat/completions", made["key"], R)[0] == 429)
    assert time.monotonic() - changed_s < 5.0
