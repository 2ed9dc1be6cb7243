"""Field reports on requests: what passes, what is refused, and that nothing between the two happens."""

import gzip
import json
import socket
import struct
import time
import zlib

import pytest

from tests.support import captures, sse
from tests.support.rawbackend import sized
from tests.support.stage import (
    ANSWER,
    CHAT,
    DONE,
    FINISH,
    LATE_S,
    PAIR,
    REPORTED,
    ROLE,
    RS,
    RSU,
    SIZED,
    STANDARD,
    USAGE,
    R,
    Reply,
    Stage,
    billed,
    model,
    stream,
)

pytestmark = pytest.mark.integration

FIELDS = {"message", "type", "param", "code"}
ORIGIN = "https://app.example.com"
BODY_BYTES_MAX = 4 * 1024 * 1024
RAW_R = json.dumps(R).encode()


@pytest.fixture(scope="module")
def setting() -> dict:
    return {
        "cors": {"origins": [ORIGIN]},
        "bounds": {"body_bytes_max": BODY_BYTES_MAX},
        "more_models": (model("a-model-with-a-name-that-is-much-longer", "b1"),),
    }


def exchange(stage: Stage, raw: bytes, *, method: str = "POST") -> captures.Response:
    """Send these bytes and read one answer."""
    with socket.create_connection(("127.0.0.1", stage.gateway.port), timeout=10) as sock:
        sock.sendall(raw)
        return read_one(sock, method)


def read_one(sock: socket.socket, method: str = "POST") -> captures.Response:
    received = b""
    while True:
        try:
            return captures.split_response(received, method=method)[0]
        except captures.Incomplete:
            data = sock.recv(65_536)
            assert data, received
            received += data


def head(stage: Stage, path: str, *lines: str, method: str = "POST", key: bool = True) -> bytes:
    """A request's head."""
    named = [f"{method} {path} HTTP/1.1", "host: gateway"]
    if key:
        named.append(f"authorization: Bearer {stage.gateway.keys['acme']}")
    return ("\r\n".join((*named, *lines)) + "\r\n\r\n").encode()


def check_refused(reply: Reply, *, status: int = 400, param: str | None = None) -> None:
    """The request is at fault, and it is said in OpenAI's shape."""
    assert (reply.status, reply.error.keys()) == (status, FIELDS)
    assert reply.error["type"] == "invalid_request_error"
    assert param is None or reply.error["param"] == param
    assert "Traceback" not in reply.error["message"]
    assert "x-weighbridge-call-id" not in reply.headers


# -- BR-061


@pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream": None}], ids=repr)
def test_br_061_nothing_is_added_to_a_call_that_is_not_streamed(stage: Stage, more: dict) -> None:
    reply = stage.post(R | more)
    assert (reply.status, json.loads(reply.body)) == (200, ANSWER)
    assert json.loads(stage.b1.asked[0].body) == R | more
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_061_what_a_client_says_itself_is_the_backends_to_judge(stage: Stage) -> None:
    refusal = {"error": {"message": "Stream options can only be defined when `stream=True`.",
                         "type": "BadRequestError", "param": "stream_options", "code": 400}}  # fmt: skip
    stage.b1.default = sized(json.dumps(refusal).encode(), "400 Bad Request")
    ask = R | {"stream_options": {"include_usage": True}}
    reply = stage.post(ask | PAIR)
    assert (reply.status, reply.error) == (400, refusal["error"])
    assert json.loads(stage.b1.asked[0].body) == ask
    assert stage.b2.asked == []
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["cost_pusd"]) == ("refused", 0)


# -- BR-062


@pytest.mark.parametrize("name", ["gzip", "GZIP", "x-gzip", " gzip "])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_br_062_gzip_is_unpacked(stage: Stage, path: str, name: str) -> None:
    ask = {"model": "m1", "prompt": "hi"} if path != CHAT else R
    if path != CHAT:
        stage.b1.default = sized(b'{"id":"c","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}')
    reply = stage.post(gzip.compress(json.dumps(ask).encode()), path=path, content_encoding=name)
    assert reply.status == 200
    (asked,) = stage.b1.asked
    assert json.loads(asked.body) == ask
    assert int(asked.headers["content-length"]) == len(asked.body)
    assert "content-encoding" not in asked.headers


def test_br_062_identity_is_no_encoding(stage: Stage) -> None:
    assert stage.post(R, content_encoding="identity").status == 200
    assert json.loads(stage.b1.asked[0].body) == R


BAD_GZIPS = {
    "cut": gzip.compress(RAW_R)[:-10],
    "empty": b"",
    "plain": RAW_R,
    "deflate": zlib.compress(RAW_R),
    "with something behind": gzip.compress(RAW_R) + b"x",
    "of no JSON": gzip.compress(b"{"),
    "wrong sum": gzip.compress(RAW_R)[:-8] + b"\0" * 8,
}


@pytest.mark.parametrize("body", BAD_GZIPS.values(), ids=BAD_GZIPS)
def test_br_062_what_is_no_whole_gzip_is_refused(stage: Stage, body: bytes) -> None:
    check_refused(stage.post(body, content_encoding="gzip"))
    assert stage.b1.asked == []


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "gzip, identity", "deflate", "x", "compress"])
def test_br_062_other_encodings_are_refused(stage: Stage, name: str) -> None:
    check_refused(stage.post(gzip.compress(RAW_R), content_encoding=name), status=415)
    assert stage.b1.asked == []


def gzip_of_blanks(mebibytes: int) -> bytes:
    """So many MiB of blanks; made of one, packed once, for speed."""
    block = b" " * (1024 * 1024)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(mebibytes):
        checksum = zlib.crc32(block, checksum)
    head = gzip.compress(b"")[:10]
    return (
        head + packed * mebibytes + b"\x03\x00" + struct.pack("<II", checksum, mebibytes * len(block) % 2**32)
    )


def test_br_062_a_bomb_is_refused_before_it_is_large(stage: Stage) -> None:
    assert gzip.decompress(gzip_of_blanks(2)) == b" " * 2 * 1024 * 1024
    before = stage.rss_bytes()
    for mebibytes in (BODY_BYTES_MAX // (1024 * 1024) + 1, 1024):
        check_refused(stage.post(gzip_of_blanks(mebibytes), content_encoding="gzip"), status=413)
    assert stage.rss_bytes() - before < 32 * 1024 * 1024
    assert stage.b1.asked == []


def test_br_062_as_many_bytes_as_may_be_are_unpacked(stage: Stage) -> None:
    body = RAW_R.ljust(BODY_BYTES_MAX)
    assert stage.post(gzip.compress(body), content_encoding="gzip").status == 200
    assert stage.b1.asked[0].body == body
    check_refused(stage.post(gzip.compress(body + b" "), content_encoding="gzip"), status=413)


# -- BR-064

BAD_BODIES = {
    "not UTF-8": b'{"model":"m1","messages":[{"role":"user","content":"\xff"}]}',
    "half a character": '{"model":"m1","messages":[{"role":"user","content":"é"}]}'.encode()[:-5] + b'"}]}',
    "an encoded surrogate": b'{"model":"m1","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "a lone surrogate": b'{"model":"m1","messages":[{"role":"user","content":"\\ud800"}]}',
    "a lone surrogate in a key": b'{"model":"m1","\\udc00":1}',
    "NaN": b'{"model":"m1","temperature":NaN,"messages":[]}',
    "Infinity": b'{"model":"m1","temperature":Infinity,"messages":[]}',
    "-Infinity in a part that is not read": b'{"model":"m1","x":{"y":[1,-Infinity]},"messages":[]}',
    "an open object": b"{",
    "empty": b"",
    "spaces": b" \n ",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "a number": b"1",
    "5000 lists deep": b"[" * 5000,
    "5000 lists in a part": b'{"model":"m1","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "two values": b'{"model":"m1"}{"model":"m1"}',
    "a trailing comma": b'{"model":"m1",}',
    "a comment": b'{"model":"m1"/* */}',
    "a raw control character": b'{"model":"m1","x":"\x00"}',
    "UTF-16": json.dumps(R).encode("utf-16"),
    "UTF-8 with a byte order mark": b"\xef\xbb\xbf" + RAW_R,
    "a leading zero": b'{"model":"m1","n":01}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_br_064_what_is_no_json_object_is_refused(stage: Stage, body: bytes) -> None:
    raw = head(stage, CHAT, "content-type: application/json", f"content-length: {len(body)}") + body
    with socket.create_connection(("127.0.0.1", stage.gateway.port), timeout=10) as sock:
        sock.sendall(raw)
        answer = read_one(sock)
        error = json.loads(answer.body)["error"]
        assert (answer.status, error.keys(), error["type"]) == (400, FIELDS, "invalid_request_error")
        assert stage.b1.asked == []
        good = head(stage, CHAT, "content-type: application/json", f"content-length: {len(RAW_R)}") + RAW_R
        sock.sendall(good)  # the connection is as good as before
        assert read_one(sock).status == 200
    assert len(stage.b1.asked) == 1


# -- BR-065

PYTHONS = (b'{"token": "a", "logprob": -Infinity, "bytes": null}', b'{"token": "a", "logprob": NaN}')


def with_logprobs(data: bytes, logprobs: bytes) -> bytes:
    """The same with log probabilities in each choice."""
    return data.replace(b'"finish_reason"', b'"logprobs": {"content": [' + logprobs + b']}, "finish_reason"')


@pytest.mark.parametrize("logprobs", PYTHONS)
def test_br_065_numbers_that_json_lacks_pass_as_they_came(stage: Stage, logprobs: bytes) -> None:
    body = (
        json.dumps(ANSWER)
        .encode()
        .replace(b'"finish_reason"', b'"logprobs": {"content": [' + logprobs + b']}, "finish_reason"')
    )
    stage.b1.default = sized(body)
    reply = stage.post(R | {"logprobs": True})
    assert (reply.status, reply.body) == (200, body)
    assert billed(stage.record(reply.call_id)) == REPORTED


@pytest.mark.parametrize("ask", [RS, RSU], ids=["not asked", "asked"])
@pytest.mark.parametrize("logprobs", PYTHONS)
def test_br_065_in_a_stream_too(stage: Stage, ask: dict, logprobs: bytes) -> None:
    odd = [with_logprobs(piece, logprobs) for piece in STANDARD]
    stage.b1.default = stream(*odd)
    reply = stage.post(ask | {"logprobs": True})
    kept = [piece for piece in odd if ask is RSU or piece != USAGE]
    assert (reply.status, reply.body) == (200, b"".join(kept))
    record = stage.record(reply.call_id)
    assert billed(record) == REPORTED
    assert record["finish_reasons"] == ["stop"]
    assert record["ttft_ns"] is not None


def test_br_065_also_beside_the_usage(stage: Stage) -> None:
    odd = USAGE.replace(b'"choices": []', b'"choices": [], "score": NaN')
    stage.b1.default = stream(ROLE, STANDARD[1], FINISH, odd, DONE)
    reply = stage.post(RS)
    assert billed(stage.record(reply.call_id)) == REPORTED
    assert sse.parse(reply.body)[-1].done


# -- BR-067

DOUBLES = {
    "model": b'{"model":"m1","model":"m2","messages":[]}',
    "model, the other way": b'{"model":"m2","messages":[],"model":"m1"}',
    "model, the same": b'{"model":"m1","messages":[],"model":"m1"}',
    "model, escaped": b'{"model":"m1","mod\\u0065l":"m2","messages":[]}',
    "model, all escaped": b'{"\\u006d\\u006f\\u0064\\u0065\\u006c":"m2","messages":[],"model":"m1"}',
    "stream": b'{"model":"m1","stream":true,"messages":[],"stream":false}',
    "max_tokens": b'{"model":"m1","max_tokens":1,"max_tokens":100000,"messages":[]}',
    "max_completion_tokens": b'{"model":"m1","max_completion_tokens":1,"max_completion_tokens":9,"messages":[]}',
    "stream_options": b'{"model":"m1","stream":true,"stream_options":{},"stream_options":null,"messages":[]}',
    "include_usage": b'{"model":"m1","stream":true,"stream_options":{"include_usage":true,"include_usage":false}}',
    "n": b'{"model":"m1","n":1,"messages":[],"n":100}',
    "with spaces": b'{ "model" : "m1" , "messages" : [ ] , "model" : "m2" }',
}


@pytest.mark.parametrize("name", DOUBLES)
@pytest.mark.parametrize("padding", [0, 100_000], ids=["short", "long"])
def test_br_067_a_key_that_stands_twice_is_refused(stage: Stage, name: str, padding: int) -> None:
    body = DOUBLES[name]
    if padding:
        body = body.replace(b"{", b'{"x":"' + b"p" * padding + b'",', 1)
    reply = stage.post(body)
    check_refused(reply)
    assert reply.error["param"].rpartition(".")[2] == name.partition(",")[0].replace("with spaces", "model")
    assert stage.b1.asked == []


ONCE = {
    "in a message": b'{"model":"m1","messages":[{"role":"user","content":"\\"model\\":\\"m2\\"","model":"m2"}]}',
    "in another object": b'{"x":{"model":"m2","stream":true},"model":"m1","messages":[]}',
    "keys that are not ours": b'{"model":"m1","messages":[],"x":1,"x":2}',
    "escaped, once": b'{"mod\\u0065l":"m1","messages":[]}',
    "longer names": b'{"model":"m1","models":["m2"],"model_x":"m2","messages":[]}',
}


@pytest.mark.parametrize("body", ONCE.values(), ids=ONCE)
def test_br_067_elsewhere_it_is_not_ours(stage: Stage, body: bytes) -> None:
    reply = stage.post(body)
    assert reply.status == 200
    assert stage.b1.asked[0].body == body
    assert stage.record(reply.call_id)["model"] == "m1"


# -- BR-068

MORE = (
    b'"top_k":20,"chat_template_kwargs":{"enable_thinking":false},"guided_json":{"type":"object"},'
    b'"seed":12345678901234567890,"temperature":1.0,"x_future":{"a":[1,2.50,null,1e400,-0.0]},'
    b'"logit_bias":{"50256":-100},"cache_salt":"mine","user":"u","priority":-1,"text":"\xc3\xa9 \\u00e9 \\/"'
)


@pytest.mark.parametrize("streamed", [False, True], ids=["sized", "stream"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_br_068_fields_pass_byte_for_byte(stage: Stage, first: bool, streamed: bool) -> None:
    ours = b'"model": "m1","stream":' + (b"true" if streamed else b"false")
    body = b"{" + b" , ".join((MORE, ours) if first else (ours, MORE)) + b"}"
    if streamed:
        stage.b1.default = stream(*STANDARD)
    reply = stage.post(body)
    assert reply.status == 200
    got = stage.b1.asked[0].body
    assert got.replace(b'"stream_options":{"include_usage":true},', b"") == body
    assert (got != body) is streamed
    assert json.loads(got)["seed"] == 12345678901234567890
    assert billed(stage.record(reply.call_id)) == REPORTED


def test_br_068_only_the_name_of_the_model_is_replaced(stage: Stage) -> None:
    body = b'{"messages": [],\n "model" :  "m1-pair" , ' + MORE + b"}"
    reply = stage.post(body)
    assert reply.status == 200
    assert stage.b1.asked[0].body == body.replace(b'"m1-pair"', b'"m1"')


# -- BR-070


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json;charset=utf8", 200),
        ("application/json; version=1", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-16", 415),
        ("text/plain, application/json", 415),
        ("*/*", 415),
        ("", 415),
    ],
)
def test_br_070_json_in_utf8_is_what_is_read(stage: Stage, kind: str | None, status: int) -> None:
    lines = [f"content-length: {len(RAW_R)}"] + ([] if kind is None else [f"content-type: {kind}"])
    answer = exchange(stage, head(stage, CHAT, *lines) + RAW_R)
    assert (kind, answer.status) == (kind, status)
    if status == 200:
        assert stage.b1.asked[0].headers["content-type"] == "application/json"
    else:
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert stage.b1.asked == []


# -- BR-071


def test_br_071_headers_of_the_hop_stay_on_it(stage: Stage) -> None:
    ask = R | {"model": "a-model-with-a-name-that-is-much-longer"}
    own = {"connection": "keep-alive, X-Foo", "server": "uvicorn", "x-foo": "1", "keep-alive": "timeout=5",
           "set-cookie": "a=b", "date": "Thu, 01 Jan 1970 00:00:00 GMT"}  # fmt: skip
    lines = "".join(f"{name}: {value}\r\n" for name, value in own.items()).encode()
    stage.b1.default = SIZED.replace(b"content-type", lines + b"content-type", 1)
    began_s = time.monotonic()
    reply = stage.post(
        ask, te="trailers", x_foo="1", accept_encoding="br", cookie="a=b", proxy_authorization="Basic abc",
        keep_alive="timeout=5", x_forwarded_for="10.0.0.5", content_md5="x",
    )  # fmt: skip
    assert time.monotonic() - began_s < 1.0 + LATE_S
    assert (reply.status, json.loads(reply.body), reply.complete) == (200, ANSWER, True)
    (asked,) = stage.b1.asked
    assert json.loads(asked.body) == R
    assert asked.headers.keys() == {
        "host", "accept", "accept-encoding", "x-request-id", "content-type", "content-length",
    }  # fmt: skip
    assert int(asked.headers["content-length"]) == len(asked.body)
    assert asked.headers["accept-encoding"] == "identity"
    assert own.keys() & reply.headers.keys() <= {"connection", "server", "date"}
    assert (reply.headers["connection"], reply.headers["date"] == own["date"]) == ("close", False)
    assert reply.headers.get("server") != "uvicorn"
    assert int(reply.headers["content-length"]) == len(reply.body)


@pytest.mark.parametrize("ask", [R, RS], ids=["sized", "stream"])
def test_br_071_expect_is_answered(stage: Stage, ask: dict) -> None:
    stage.b1.default = stream(*STANDARD) if ask is RS else SIZED
    body = json.dumps(ask).encode()
    lines = ["content-type: application/json", f"content-length: {len(body)}", "expect: 100-continue"]
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", stage.gateway.port), timeout=10) as sock:
        sock.sendall(head(stage, CHAT, *lines))
        interim = b""
        while b"\r\n\r\n" not in interim:
            interim += sock.recv(1)
        assert interim.split(b"\r\n")[0] == b"HTTP/1.1 100 Continue"
        sock.sendall(body)
        answer = read_one(sock)
    assert time.monotonic() - began_s < 1.0 + LATE_S
    assert answer.status == 200
    assert "expect" not in stage.b1.asked[0].headers


def test_br_071_chunked_bodies_are_counted_anew(stage: Stage) -> None:
    framing = b"".join(b"%x\r\n%b\r\n" % (1, RAW_R[at : at + 1]) for at in range(len(RAW_R))) + b"0\r\n\r\n"
    lines = ("content-type: application/json", "transfer-encoding: chunked")
    assert exchange(stage, head(stage, CHAT, *lines) + framing).status == 200
    (asked,) = stage.b1.asked
    assert asked.body == RAW_R
    assert "transfer-encoding" not in asked.headers


def test_br_071_two_lengths_are_no_request(stage: Stage) -> None:
    lines = ("content-type: application/json", f"content-length: {len(RAW_R)}", "transfer-encoding: chunked")
    answer = exchange(stage, head(stage, CHAT, *lines) + RAW_R)
    assert answer.status == 400
    assert stage.b1.asked == []


# -- BR-073

PREFLIGHT = (
    "access-control-request-method: POST",
    "access-control-request-headers: authorization, content-type",
)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/completions"])
def test_br_073_a_preflight_needs_no_key(stage: Stage, path: str) -> None:
    raw = head(stage, path, f"origin: {ORIGIN}", *PREFLIGHT, method="OPTIONS", key=False)
    answer = exchange(stage, raw, method="HEAD")
    assert answer.status in (200, 204)
    headers = dict(answer.headers)
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert "access-control-allow-credentials" not in headers
    assert "origin" in headers["vary"].lower()


def test_br_073_other_origins_are_not_let_in(stage: Stage) -> None:
    raw = head(stage, CHAT, "origin: https://evil.example.com", *PREFLIGHT, method="OPTIONS", key=False)
    answer = exchange(stage, raw, method="POST")
    assert answer.status == 403
    assert not [name for name, _ in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("ask", [R, RS, {"model": "nobody"}, b"{"], ids=["sized", "stream", "404", "400"])
def test_br_073_answers_can_be_read_by_the_pages_that_may(stage: Stage, ask: object) -> None:
    if ask is RS:
        stage.b1.default = stream(*STANDARD)
    reply = stage.post(ask, origin=ORIGIN)
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    reply = stage.post(ask, origin="https://evil.example.com")
    assert "access-control-allow-origin" not in reply.headers


def test_br_073_options_without_an_origin_is_no_method_of_ours(stage: Stage) -> None:
    answer = exchange(stage, head(stage, CHAT, method="OPTIONS", key=False))
    assert answer.status == 405
    assert dict(answer.headers)["allow"] == "POST"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_br_073_probes_may_use_head(stage: Stage, path: str) -> None:
    answer = exchange(stage, head(stage, path, method="HEAD", key=False), method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/v1/models"])
def test_br_073_head_has_the_length_of_get(stage: Stage, path: str) -> None:
    lengths = []
    for method in ("HEAD", "GET"):
        answer = exchange(stage, head(stage, path, method=method), method=method)
        assert answer.status == 200
        lengths.append(int(dict(answer.headers)["content-length"]))
    assert path == "/metrics" or lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("HEAD", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("POST", "//v1/chat/completions", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/chat//completions", 404),
        ("POST", "/v1/../v1/chat/completions", 404),
        ("POST", "/V1/chat/completions", 404),
        ("POST", "/v1/chat/completions%00", 404),
        ("POST", "/chat/completions", 404),
        ("POST", "/v1/nothing", 404),
    ],
)
def test_br_073_other_paths_and_methods(stage: Stage, method: str, path: str, status: int) -> None:
    lines = ("content-type: application/json", f"content-length: {len(RAW_R)}")
    raw = head(stage, path, *lines, method=method) + RAW_R
    answer = exchange(stage, raw, method=method)
    assert (answer.status, "location" in dict(answer.headers)) == (status, False)
    assert stage.b1.asked == []
    if method != "HEAD":
        error = json.loads(answer.body)["error"]
        assert (error.keys(), error["type"]) == (FIELDS, "invalid_request_error")
    if status == 405:
        assert dict(answer.headers)["allow"] in ("POST", "GET", "GET, HEAD", "HEAD, GET")


def test_br_073_a_query_is_no_other_path(stage: Stage) -> None:
    lines = ("content-type: application/json", f"content-length: {len(RAW_R)}")
    assert exchange(stage, head(stage, CHAT + "?api-version=1", *lines) + RAW_R).status == 200
    assert stage.b1.asked[0].path == CHAT


# -- BR-074

BAD_VALUES = [
    *(("n", value) for value in (0, -1, 10**9, 129, "2", True, 1.5, [1], {})),
    *(("max_tokens", value) for value in (-1, "100", True, 10**18, 1e18, 1.5, [])),
    *(("max_completion_tokens", value) for value in (-1, "100", True, 10**18)),
    *(("stream", value) for value in ("true", 1, [], {})),
    *(("model", value) for value in (1, None, True, ["m1"], {}, "")),
    *(("stream_options", value) for value in (1, "x", [])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=repr)
def test_br_074_values_that_would_defeat_a_limit_are_refused(stage: Stage, name: str, value: object) -> None:
    # The limit of tokens a minute comes with *Tenants*.
    streamed = {"stream": True} if name == "stream_options" else {}
    reply = stage.post(R | streamed | {name: value})
    if name == "model" and value == "":
        assert reply.status in (400, 404)
    else:
        check_refused(reply, param=name)
    assert stage.b1.asked == []


@pytest.mark.parametrize(
    "more",
    [
        {"n": None},
        {"n": 128},
        {"n": 1},
        {"max_tokens": None},
        {"max_tokens": 1},
        {"max_tokens": 100, "max_completion_tokens": 50},
        {"stop": [f"s{number}" for number in range(10_000)]},
        {"stream": None, "stream_options": None},
    ],
    ids=lambda more: ",".join(more),
)
def test_br_074_others_pass(stage: Stage, more: dict) -> None:
    reply = stage.post(R | more)
    assert reply.status == 200
    assert json.loads(stage.b1.asked[0].body) == R | more
    params = stage.record(reply.call_id)["params"]
    assert params["n"] == more.get("n")
    assert params["max_tokens"] in (more.get("max_tokens"), more.get("max_completion_tokens"))


def test_br_074_no_tokens_at_all_are_the_backends_to_refuse(stage: Stage) -> None:
    refusal = {"message": "max_tokens must be at least 1", "type": "x", "param": "max_tokens", "code": 400}
    stage.b1.default = sized(json.dumps({"error": refusal}).encode(), "400 Bad Request")
    reply = stage.post(R | {"max_tokens": 0})
    assert reply.status == 400
    assert reply.error["param"] == "max_tokens"
    assert json.loads(stage.b1.asked[0].body)["max_tokens"] == 0
