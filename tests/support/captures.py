"""Recorded HTTP exchanges with a model server: reading them, and their shapes.

A capture is a directory (format and origin: tests/data/vllm-0.32.0/README.md):

    index.json              one entry an exchange, in the order they were made
    <name>.request.http     bytes as the client sent them
    <name>.response.http    bytes as the server sent them: head, and body with its chunk framing
    <name>.sse              a stream's body without the framing

`VLLM` has chat and completions; below it `VLLM_APIS` has the other paths of a model that generates, `VLLM_POOLING`
those of one that embeds, `VLLM_CLASSIFYING` those of one that classifies. Imports nothing of the project: it is a
judge of it.
"""

import dataclasses
import json
import pathlib
import typing

DATA = pathlib.Path(__file__).parent.parent / "data"
VLLM = DATA / "vllm-0.32.0"
APIS, POOLING, CLASSIFYING = "apis", "pooling", "classifying"
VLLM_APIS, VLLM_POOLING, VLLM_CLASSIFYING = VLLM / APIS, VLLM / POOLING, VLLM / CLASSIFYING
SUITES = {"": VLLM} | {f"{name}/": VLLM / name for name in (APIS, POOLING, CLASSIFYING)}
"""All of these directories, by what a test puts before the names of their captures."""


class Incomplete(ValueError):
    """The bytes end before the response does."""


@dataclasses.dataclass(frozen=True)
class Response:
    """One HTTP/1.1 response. Header names are in lower case, in the order they came.

    chunks: the body as the server framed it (one piece where it has a content length).
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    chunks: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def content_type(self) -> str:
        return dict(self.headers).get("content-type", "")

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A recorded request and its response."""

    name: str
    request: bytes
    response: Response

    @property
    def request_body(self) -> bytes:
        return self.request.partition(b"\r\n\r\n")[2]


def load(name: str, directory: pathlib.Path = VLLM) -> Exchange:
    method = index(directory)[name]["method"]
    request = (directory / f"{name}.request.http").read_bytes()
    raw = (directory / f"{name}.response.http").read_bytes()
    return Exchange(name, request, read_response(raw, method=method))


def index(directory: pathlib.Path = VLLM) -> dict[str, dict[str, typing.Any]]:
    """Entries by name: method, path, status, stream, about."""
    return {entry.pop("name"): entry for entry in json.loads((directory / "index.json").read_text())}


def streams(directory: pathlib.Path = VLLM) -> dict[str, bytes]:
    """De-chunked bodies of all recorded streams, by name."""
    return {path.stem: path.read_bytes() for path in sorted(directory.glob("*.sse"))}


def read_response(raw: bytes, *, method: str = "GET") -> Response:
    """Read one response from the front of `raw`. Raises Incomplete."""
    return split_response(raw, method=method)[0]


def split_response(raw: bytes, *, method: str) -> tuple[Response, bytes]:
    """The response to a `method` request at the front of `raw`, and what follows. Raises Incomplete."""
    head, blank, rest = raw.partition(b"\r\n\r\n")
    if not blank:
        raise Incomplete("no end of the head")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)
    status, named = int(status_line.split()[1]), dict(headers)
    if method == "HEAD" or status in (204, 304):
        return Response(status, headers, ()), rest
    if named.get("transfer-encoding") == "chunked":
        chunks, rest = split_chunks(rest)
        return Response(status, headers, chunks), rest
    length = int(named["content-length"])
    if len(rest) < length:
        raise Incomplete(f"{len(rest)} of {length} bytes of the body")
    return Response(status, headers, (rest[:length],)), rest[length:]


def split_chunks(framed: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Chunks of a chunked body, the empty last one left out, and the bytes behind it. Raises Incomplete."""
    chunks: list[bytes] = []
    while True:
        size_line, newline, framed = framed.partition(b"\r\n")
        if not newline:
            raise Incomplete("no chunk size")
        size = int(size_line.partition(b";")[0], 16)
        if len(framed) < size + 2:
            raise Incomplete("a chunk is cut")
        chunk, framed = framed[:size], framed[size + 2 :]
        if not chunk:
            return tuple(chunks), framed
        chunks.append(chunk)


def events(stream: bytes) -> list[bytes]:
    """Data of each event, for streams framed as vLLM does it: maybe `event: …`, then `data: …`, a blank line."""
    found = []
    for event in stream.split(b"\n\n")[:-1]:
        name, _, rest = event.rpartition(b"\ndata: ")
        assert name.startswith(b"event: ") if name else event.startswith(b"data: "), event
        found.append(rest if name else event.removeprefix(b"data: "))
    return found


def shape(value: object, path: str = "$") -> list[str]:
    """Key paths and types of a JSON value, keys in order; items of a list that look alike stand once."""
    match value:
        case dict():
            inner = [shape(item, f"{path}.{key}") for key, item in value.items()]
            return [f"{path}: object", *(line for lines in inner for line in lines)]
        case list():
            distinct = dict.fromkeys(tuple(shape(item, f"{path}[]")) for item in value)
            return [f"{path}: list", *(line for lines in distinct for line in lines)]
        case None:
            return [f"{path}: null"]
        case _:
            return [f"{path}: {type(value).__name__}"]


def response_shape(response: Response) -> list[str]:
    """Status, content type and shape of a response; of a stream, the distinct shapes of its events in the
    order of their first appearance (choices of one stream interleave as the scheduler pleases)."""
    lines = [f"status: {response.status}", f"content-type: {response.content_type}"]
    if response.is_stream:
        for seen in dict.fromkeys(event_shape(data) for data in events(response.body)):
            lines += ["event", *(f"  {line}" for line in seen)]
    elif response.content_type.startswith("application/json") and response.body:
        lines += shape(json.loads(response.body))
    return lines


def event_shape(data: bytes) -> tuple[str, ...]:
    return ("[DONE]",) if data == b"[DONE]" else tuple(shape(json.loads(data)))
