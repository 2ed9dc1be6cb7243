"""The few fields of a request that the gateway acts on, and edits to its body by splicing. Pure.

The body goes on byte for byte but for the spans that are replaced. Two parsers could take different ones of
two equal keys, so a second of a key that we act on is refused, however it is spelt.
"""

import re
from collections.abc import Set
from typing import Any

import msgspec

from gateway.errors import InvalidRequest

N_MAX = 128
TOKENS_MAX = 2**53
"""A larger max_tokens is no count to most JSON readers."""

MODEL_CHARACTERS_MAX = 256

ACTED_ON = frozenset({"max_completion_tokens", "max_tokens", "model", "n", "stream", "stream_options"})
"""Keys that may stand once only; `include_usage` inside `stream_options` is one more."""

Span = tuple[int, int]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for. keys: the names of its parameters that are not null.

    include_usage: the client wants the usage event. max_tokens: max_completion_tokens, if given, wins.
    Spans are offsets into the body; None: the key is absent.
    """

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    n: int | None
    keys: tuple[str, ...]
    model_span: Span
    stream_options_span: Span | None
    include_usage_span: Span | None


def read_ask(body: bytes) -> Ask:
    """Read the fields we act on. Raises InvalidRequest, with the parameter at fault where one is."""
    values = _decoded(body)
    if "model" not in values:
        raise InvalidRequest("you must provide a model", param="model")
    spans = _spans(body, values, ACTED_ON, inside="")
    stream = _flag(values, "stream", inside="") or False
    asked, include_usage_span = None, None
    options_span = spans.get("stream_options")
    if options_span is not None and not _is_null(body, options_span):
        text = bytes(values["stream_options"])
        options = _options(text)
        inner = _spans(text, options, {"include_usage"}, inside="stream_options.")
        asked = _flag(options, "include_usage", inside="stream_options.")
        if "include_usage" in inner:
            start, end = inner["include_usage"]
            include_usage_span = options_span[0] + start, options_span[0] + end
    max_tokens = _count(values, "max_tokens", TOKENS_MAX)
    max_completion_tokens = _count(values, "max_completion_tokens", TOKENS_MAX)
    return Ask(
        model=_model(values["model"]),
        stream=stream,
        include_usage=stream and bool(asked),
        max_tokens=max_tokens if max_completion_tokens is None else max_completion_tokens,
        n=_count(values, "n", N_MAX),
        keys=tuple(name for name, span in spans.items() if not _is_null(body, span)),
        model_span=spans["model"],
        stream_options_span=options_span,
        include_usage_span=include_usage_span,
    )


def splice(body: bytes, ask: Ask, *, model: str | None, include_usage: bool) -> bytes:
    """The body for a backend.

    body: the one that `ask` was read from. model: its name there; None: as the client called it.
    include_usage: make the backend send the usage event, whatever the client wants. All else keeps its bytes.
    """
    edits: list[tuple[Span, bytes]] = []
    if model is not None:
        edits.append((ask.model_span, msgspec.json.encode(model)))
    if include_usage:
        edits.append(_usage_edit(body, ask))
    if not edits:
        return body
    pieces: list[bytes] = []
    at = 0
    for (start, end), replacement in sorted(edits):
        pieces += (body[at:start], replacement)
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


def _usage_edit(body: bytes, ask: Ask) -> tuple[Span, bytes]:
    if ask.include_usage_span is not None:
        return ask.include_usage_span, b"true"
    if ask.stream_options_span is None:
        behind = body.index(b"{") + 1
        return (behind, behind), b'"stream_options":{"include_usage":true},'
    start, end = ask.stream_options_span
    if _is_null(body, (start, end)):
        return (start, end), b'{"include_usage":true}'
    comma = b"" if _EMPTY_OBJECT.match(body, start) else b","
    return (start + 1, start + 1), b'"include_usage":true' + comma


# -- the fields


_Values = dict[str, msgspec.Raw]
_decode_values = msgspec.json.Decoder(_Values).decode


def _decoded(body: bytes) -> _Values:
    try:
        if not body.isascii():
            body.decode("utf-8")  # the decoder looks only into the strings that it returns
        return _decode_values(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not valid UTF-8") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise InvalidRequest("the body must be a JSON object") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error


def _options(text: bytes) -> _Values:
    try:
        return _decode_values(text)
    except msgspec.ValidationError as error:
        raise InvalidRequest("stream_options must be an object", param="stream_options") from error


def _model(raw: msgspec.Raw) -> str:
    value = _scalar(raw, "model")
    if value is None or value == "":
        raise InvalidRequest("you must provide a model", param="model")
    if not isinstance(value, str):
        raise InvalidRequest("model must be a string", param="model")
    if len(value) > MODEL_CHARACTERS_MAX:
        raise InvalidRequest(f"model must have at most {MODEL_CHARACTERS_MAX} characters", param="model")
    return value


def _flag(values: _Values, name: str, *, inside: str) -> bool | None:
    if name not in values:
        return None
    value = _scalar(values[name], inside + name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"{inside}{name} must be true or false", param=inside + name)


def _count(values: _Values, name: str, count_max: int) -> int | None:
    if name not in values:
        return None
    value = _scalar(values[name], name)
    if value is None:
        return None
    if type(value) is not int:  # True is an int to Python
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if not 1 <= value <= count_max:
        raise InvalidRequest(f"{name} must be between 1 and {count_max}", param=name)
    return value


def _scalar(raw: msgspec.Raw, param: str) -> Any:
    """The value of a member. JSON bounds no number, and the decoder does: 1e999 is JSON, and no value."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param} is out of range", param=param) from error


def _is_null(body: bytes, span: Span) -> bool:
    start, end = span
    return end - start == 4 and body.startswith(b"null", start)


# -- spans of the members of one object, in a text that is known to be JSON

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE = rb"[ \t\r\n]*+"
_KEY = re.compile(_SPACE + b"[{,]" + _SPACE + b"(" + _STRING + b")" + _SPACE + b":" + _SPACE, re.DOTALL)
_FLAT_VALUE = re.compile(_STRING + rb'|[^"{}\[\],\s]++', re.DOTALL)
_STRUCTURE = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_EMPTY_OBJECT = re.compile(rb"\{" + _SPACE + rb"\}")


def _spans(text: bytes, values: _Values, once: Set[str], *, inside: str) -> dict[str, Span]:
    """The members' values by key; those of `once` may stand once only.

    text: an object. values: as decoded from it, in the order of its keys. If each value is where the key behind
    the one before ends, and none is left over, no key stands twice: the cheap way. Else the text is cut into tokens.
    """
    spans: dict[str, Span] = {}
    at = 0
    for name, raw in values.items():
        key = _KEY.match(text, at)
        value = bytes(raw)
        if key is None or not text.startswith(value, key.end()):
            break
        at = key.end() + len(value)
        spans[name] = key.end(), at
    if len(spans) == len(values) and text[at:].strip() == b"}":
        return spans
    return _spans_of_tokens(text, once, inside)


def _spans_of_tokens(text: bytes, once: Set[str], inside: str) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    at = 0
    while (key := _KEY.match(text, at)) is not None:
        name, start = _name(key[1]), key.end()
        if name in spans and name in once:
            raise InvalidRequest(f"{inside}{name} is given twice", param=inside + name)
        flat = _FLAT_VALUE.match(text, start)
        at = flat.end() if flat is not None else _end_of_nested(text, start)
        spans[name] = start, at
    return spans


def _end_of_nested(text: bytes, start: int) -> int:
    depth, at = 1, start + 1
    while depth:
        token = _STRUCTURE.search(text, at)
        assert token is not None  # brackets match: it was decoded
        depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
        at = token.end()
    return at


def _name(raw: bytes) -> str:
    return raw[1:-1].decode() if b"\\" not in raw else msgspec.json.decode(raw, type=str)
