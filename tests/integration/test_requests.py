"""Requests in the forms that users send them: encodings, media types, browsers' questions, odd methods and paths."""

import gzip
import json
import pathlib
import re
import socket
import zlib
from collections.abc import Iterator

import pytest

from tests.integration.test_drivers import PATH, Wire, dechunked
from tests.integration.test_faces import ASK, ASK_STREAM, CHAT, DONE, FINISH, HELLO, ROLE, STREAM
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Asked, Scripted, sized

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
APP = "https://app.example.com"
BODY = json.dumps(ASK | {"model": "m1"}).encode()


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    one = Scripted(sized(CHAT))
    yield one
    one.stop()


@pytest.fixture(scope="module", params=["direct", "plain"])
def gateway(
    request: pytest.FixtureRequest, scripted: Scripted, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory: pathlib.Path = tmp_path_factory.mktemp(request.param)
    backends = [{"name": "a", "url": f"http://127.0.0.1:{scripted.port}", "model": "m1"}]
    with running(directory, backends, driver=request.param, cors={"origins": [APP], "max_age_s": 60}) as one:
        yield one


@pytest.fixture
def wire(gateway: Gateway) -> Iterator[Wire]:
    with Wire(gateway) as one:
        yield one


def send(wire: Wire, body: bytes, *more: str, path: str = PATH) -> tuple[int, dict[str, str], bytes]:
    """POST these bytes; returns status, headers, body."""
    head = wire.head(f"content-length: {len(body)}", *more, path=path)
    if any(line.lower().startswith("content-type") for line in more):
        head = head.replace(b"Content-Type: application/json\r\n", b"", 1)
    wire.sock.sendall(head + body)
    return answer(wire)


def answer(wire: Wire) -> tuple[int, dict[str, str], bytes]:
    got = b""
    while b"\r\n\r\n" not in got:
        got += wire.sock.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += wire.sock.recv(65536)
    while "transfer-encoding" in headers and not body.endswith(b"0\r\n\r\n"):
        body += wire.sock.recv(65536)
    return int(status.split()[1]), headers, dechunked(body) if "transfer-encoding" in headers else body


def asked(scripted: Scripted) -> Asked:
    return scripted.asked[-1]


def rss_bytes(gateway: Gateway) -> int:
    """The most that any worker has held since its start."""
    pids = re.findall(r'"pid":(\d+)', json.dumps(gateway.lines("start"), separators=(",", ":")))
    status = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024 for text in status)


# -- encodings


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
def test_a_gzip_body_goes_on_as_it_was(wire: Wire, scripted: Scripted, encoding: str) -> None:
    status, _, got = send(wire, gzip.compress(BODY), f"Content-Encoding: {encoding}")
    assert (status, got) == (200, CHAT)
    assert asked(scripted).body == BODY
    assert "content-encoding" not in asked(scripted).headers


def test_a_long_gzip_body_does_too(gateway: Gateway, wire: Wire, scripted: Scripted) -> None:
    long = BODY[:-1] + b', "x": "' + b"y" * 5 * MIB + b'"}'
    assert send(wire, gzip.compress(long), "Content-Encoding: gzip")[0] == 200
    assert asked(scripted).body == long
    eventually(lambda: gateway.lines("call")[-1]["body_bytes"] == len(long))


def test_identity_is_no_encoding(wire: Wire) -> None:
    assert send(wire, BODY, "Content-Encoding: identity")[0] == 200


def test_a_bomb_is_refused_in_little_memory(gateway: Gateway, wire: Wire, scripted: Scripted) -> None:
    assert send(wire, gzip.compress(BODY), "Content-Encoding: gzip")[0] == 200
    pack = zlib.compressobj(9, wbits=31)
    bomb = b"".join(pack.compress(b" " * MIB) for _ in range(1024)) + pack.flush()
    before, count = rss_bytes(gateway), len(scripted.asked)
    for _ in range(2):
        status, _, got = send(wire, bomb, "Content-Encoding: gzip")
        assert (status, json.loads(got)["error"]["type"]) == (413, "invalid_request_error")
    assert rss_bytes(gateway) - before < 32 * MIB
    assert len(scripted.asked) == count
    assert send(wire, BODY)[0] == 200


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(BODY)[:-3], "gzip", 400),
        (BODY, "gzip", 400),
        (gzip.compress(BODY) + BODY, "gzip", 400),
        (gzip.compress(gzip.compress(BODY)), "gzip, gzip", 415),
        (BODY, "br", 415),
        (BODY, "zstd", 415),
        (zlib.compress(BODY), "deflate", 415),
    ],
)
def test_other_encodings_are_refused(wire: Wire, body: bytes, encoding: str, status: int) -> None:
    got, headers, text = send(wire, body, f"Content-Encoding: {encoding}")
    assert (got, json.loads(text)["error"]["type"]) == (status, "invalid_request_error")
    assert headers.get("accept-encoding") == ("gzip" if status == 415 else None)
    assert send(wire, BODY)[0] == 200  # the connection goes on


# -- media types


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json; profile=x; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json; charset=utf-16", 415),
    ],
)
def test_media_types(wire: Wire, scripted: Scripted, kind: str, status: int) -> None:
    got, _, body = send(wire, BODY, f"Content-Type: {kind}")
    assert got == status
    if status == 415:
        assert kind.rpartition("=")[2] in json.loads(body)["error"]["message"]
    else:
        assert asked(scripted).headers["content-type"] == "application/json"


def test_no_media_type_is_json(gateway: Gateway) -> None:
    with Wire(gateway) as wire:
        head = wire.head(f"content-length: {len(BODY)}").replace(b"Content-Type: application/json\r\n", b"")
        wire.sock.sendall(head + BODY)
        assert answer(wire)[0] == 200


# -- browsers


def ask_first(
    wire: Wire, path: str = PATH, origin: str = APP, *more: str
) -> tuple[int, dict[str, str], bytes]:
    lines = [
        f"OPTIONS {path} HTTP/1.1", "Host: gateway", f"Origin: {origin}", "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type,x-stainless-os", *more,
    ]  # fmt: skip
    wire.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
    return answer(wire)


@pytest.mark.parametrize("path", [PATH, "/v1/models", "/nowhere"])
def test_a_browser_may_ask_without_a_key(gateway: Gateway, wire: Wire, scripted: Scripted, path: str) -> None:
    before = len(gateway.lines("admitted", "refused"))
    status, headers, body = ask_first(wire, path)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == APP
    assert headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert headers["access-control-max-age"] == "60"
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = ask_first(wire, path, "https://evil.example")
    assert status == 403
    assert not any(name.startswith("access-control") for name in headers)
    assert len(gateway.lines("admitted", "refused")) == before


def test_a_page_of_a_known_origin_may_read_every_answer(
    gateway: Gateway, wire: Wire, scripted: Scripted
) -> None:
    asks = [
        (200, lambda: send(wire, BODY, f"Origin: {APP}")),
        (400, lambda: send(wire, b"{", f"Origin: {APP}")),
        (415, lambda: send(wire, BODY, f"Origin: {APP}", "Content-Encoding: br")),
        (404, lambda: send(wire, BODY, f"Origin: {APP}", path="/nowhere")),
        (405, lambda: send(wire, BODY, f"Origin: {APP}", path="/v1/models")),
    ]
    for status, ask in asks:
        got, headers, _ = ask()
        assert (got, headers["access-control-allow-origin"], headers["vary"]) == (status, APP, "origin")
        assert "x-weighbridge-call-id" in headers["access-control-expose-headers"]
    scripted.script.append(STREAM)
    stream = json.dumps(ASK_STREAM | {"model": "m1"}).encode()
    status, headers, got = send(wire, stream, f"Origin: {APP}")
    assert (status, got) == (200, ROLE + HELLO + FINISH + DONE)
    assert headers["access-control-allow-origin"] == APP


def test_a_page_of_another_origin_may_read_none(wire: Wire) -> None:
    status, headers, _ = send(wire, BODY, "Origin: https://evil.example")
    assert status == 200
    assert "access-control-allow-origin" not in headers


def test_a_call_that_no_page_sent_is_answered_as_without_browsers(wire: Wire) -> None:
    for more, expected in (((), 200), (("Content-Encoding: br",), 415)):  # with the drivers' own ways
        status, headers, _ = send(wire, BODY, *more)
        assert (status, "vary" in headers) == (expected, False)


def test_without_configured_origins_browsers_get_nothing(tmp_path: pathlib.Path, scripted: Scripted) -> None:
    backends = [{"name": "a", "url": f"http://127.0.0.1:{scripted.port}", "model": "m1"}]
    with running(tmp_path, backends) as gateway, Wire(gateway) as wire:
        status, headers, body = ask_first(wire)
        assert (status, headers["allow"]) == (405, "POST")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        found = [headers, send(wire, BODY, f"Origin: {APP}")[1]]
        assert not any(name.startswith("access-control") or name == "vary" for each in found for name in each)


# -- methods and paths


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/v1/models"])
def test_head_is_get_without_its_body(wire: Wire, path: str) -> None:
    wire.sock.sendall(wire.head(method="HEAD", path=path))
    assert wire.until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    wire.sock.sendall(wire.head(method="HEAD", path=path))  # nothing of a body stands between the two
    assert wire.until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", PATH, 405, "POST"),
        ("DELETE", PATH, 405, "POST"),
        ("OPTIONS", PATH, 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/healthz", 405, "GET, HEAD"),
        ("POST", "/" + PATH, 404, None),
        ("POST", PATH + "/", 404, None),
        ("POST", "/V1/chat/completions", 404, None),
        ("POST", "/v1/../v1/chat/completions", 404, None),
        ("OPTIONS", "*", 404, None),
        ("GET", "/", 404, None),
        ("POST", "/v1/models/", 405, "GET, HEAD"),
    ],
)
def test_other_methods_and_paths_are_told_so(
    wire: Wire, scripted: Scripted, method: str, path: str, status: int, allow: str | None
) -> None:
    count = len(scripted.asked)
    wire.sock.sendall(wire.head("content-length: 2", method=method, path=path) + b"{}")
    got, headers, body = answer(wire)
    assert (got, headers.get("allow"), headers["content-type"]) == (status, allow, "application/json")
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
    assert "location" not in headers
    assert len(scripted.asked) == count


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/v1/messages", "if /v1/messages is meant, check the base URL"),
        ("GET", "/v1/v1/models/m1", "if /v1/models/m1 is meant, check the base URL"),
        ("POST", "/chat/completions", "if /v1/chat/completions is meant, check the base URL"),
        ("GET", "/healthz/", "if /healthz is meant, check the base URL"),
        ("GET", "/v1/" + "x" * 1000, "/openapi.json lists what there is"),
    ],
)
def test_a_path_that_is_not_served_is_named_with_what_it_may_have_meant(
    wire: Wire, method: str, path: str, told: str
) -> None:
    wire.sock.sendall(wire.head("content-length: 2", method=method, path=path) + b"{}")
    status, _, body = answer(wire)
    assert status == 404
    shown = path if len(path) <= 100 else path[:100] + "…"
    assert json.loads(body)["error"]["message"] == f"there is nothing at '{shown}'; {told}"


def test_models_may_be_listed_with_a_slash_behind(wire: Wire) -> None:
    listed = []
    for path in ("/v1/models", "/v1/models/"):
        wire.sock.sendall(wire.head(method="GET", path=path))
        status, _, body = answer(wire)
        listed.append((status, [card["id"] for card in json.loads(body)["data"]]))
    assert listed == [(200, ["m1"])] * 2


def test_an_upgrade_that_nobody_knows_is_left_out(wire: Wire) -> None:
    """As Java's client sends it, for HTTP/2."""
    more = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
    for _ in range(2):
        status, headers, got = send(wire, BODY, *more)
        assert (status, got) == (200, CHAT)
        assert "upgrade" not in headers
    request = wire.head(f"content-length: {len(BODY)}", *more) + BODY
    for byte in request + wire.head(*more, method="GET", path="/healthz"):
        wire.sock.sendall(bytes([byte]))
    assert wire.until(b"ok\n").count(b"HTTP/1.1 200 OK") == 2


def test_many_of_them_at_once_are_answered_in_turn(wire: Wire) -> None:
    one = wire.head("Connection: Upgrade", "Upgrade: h2c", method="GET", path="/healthz")
    wire.sock.sendall(one * 2_000)
    assert wire.until(b"ok\n", 2_000).count(b"HTTP/1.1 200 OK") == 2_000


def test_it_is_no_proxy(wire: Wire) -> None:
    wire.sock.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
    assert wire.at_end().startswith(b"HTTP/1.1 400 ")


def test_a_body_that_will_be_refused_is_not_asked_for(wire: Wire) -> None:
    wire.sock.sendall(wire.head("content-length: 99999999", "Expect: 100-continue"))
    assert answer(wire)[0] == 413
    wire.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        wire.sock.recv(1)


def test_the_client_may_shut_its_side_after_the_request(gateway: Gateway) -> None:
    with Wire(gateway) as wire:
        wire.sock.sendall(wire.head(f"content-length: {len(BODY)}") + BODY)
        wire.sock.shutdown(socket.SHUT_WR)
        wire.at_end()
    eventually(lambda: len(gateway.lines("admitted")) == len(gateway.lines("call")))
