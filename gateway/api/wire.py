"""The few fields of a request that the gateway acts on, and edits to its body by splicing. Pure.

The body goes on byte for byte but for the spans that are replaced. Two parsers could take different ones of
two equal keys, so a second of a key that we act on is refused, however it is spelt. That there is none is mostly
seen at little cost: a short body holds each name once, and no escape that could spell it otherwise; of a longer one
the members that were read, with no space between them, make up the whole, or leave no room for another. Where that
does not say so the text is looked at.
"""

import itertools
import re
from collections.abc import Sequence, Set
from typing import Annotated, Any

import msgspec

from backends import dialects
from gateway.api.errors import InvalidRequest
from gateway.api.operations import OPERATIONS, Operation
from metering import record

N_MAX = 128
LENGTH_MIN, LENGTH_MAX = 0, 2**53
"""A larger max_tokens is no count to most JSON readers. 0 is one: vLLM then only echoes the prompt, with its log
probabilities."""

MODEL_CHARACTERS_MAX = 256

SEARCHED_BYTES_MAX = 4 * 1024
"""A body no longer than this is searched for second keys; a longer one is walked along its members."""

Span = tuple[int, int]
Members = dict[str, msgspec.Raw]


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants of answers that a server keeps.

    previous: the id of the one that it continues. stored: its own is to be kept, where the server does such a thing.
    """

    previous: str | None
    stored: bool


class Ask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request asks for.

    include_usage: the client wants the usage event, or this operation's streams tell it anyway. max_tokens: the
    operation's first bound that is given; length: that bound's name. keys: those of its parameters, not null, that
    some hardware is documented not to apply. members: the body's; None: they were not looked at one by one, and there
    are no `stream_options`. options: the members of those; None: there is no such object. keeping: None where no
    answer is kept. salt: the client's `cache_salt`; None: it gives none.
    """

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    length: str | None
    n: int | None
    keys: tuple[str, ...]
    members: Members | None
    options: Members | None
    keeping: Keeping | None = None
    salt: str | None = None


Fields = Sequence[tuple[str, bytes]]
"""Members that the gateway gives a body, in the place of the client's own: name, value as JSON."""


def read_ask(body: bytes, operation: Operation) -> Ask:
    """Read the fields we act on. Raises InvalidRequest, with the parameter at fault where one is."""
    return read_usual(body, operation) or read_any(body, operation)


def read_any(body: bytes, operation: Operation) -> Ask:
    """Read a body, whatever it is. Raises InvalidRequest."""
    values = _decoded(body)
    if "model" not in values:
        raise InvalidRequest("you must provide a model", param="model")
    _check_once(body, values, operation.acted_on, inside="")
    stream = operation.streams and (_flag(values, "stream", inside="") or False)
    options = _options(values) if operation.usage_option else None
    asked = not operation.usage_option
    if options is not None:
        asked = _flag(options, "include_usage", inside="stream_options.") or False
    max_tokens = length = None
    for name in operation.lengths:
        if name in values:
            count = _count(values, name, count_min=LENGTH_MIN, count_max=LENGTH_MAX)
            if max_tokens is None and count is not None:
                max_tokens, length = count, name
    return Ask(
        model=_model(values["model"]),
        stream=stream,
        include_usage=stream and asked,
        max_tokens=max_tokens,
        length=length,
        n=_count(values, "n", count_min=1, count_max=N_MAX) if operation.choices and "n" in values else None,
        keys=() if dialects.NOT_ON_DEVICE.isdisjoint(values) else _ignorable(values),
        members=values,
        options=options,
        keeping=_keeping(values) if operation.keeps else None,
        salt=_salt(values) if operation.salted and "cache_salt" in values else None,
    )


def splice(
    body: bytes,
    ask: Ask,
    *,
    model: str | None,
    include_usage: bool,
    response_id: str | None = None,
    fields: Fields = (),
) -> bytes:
    """The body for a backend.

    body: the one that `ask` was read from. model: its name there; None: as the client called it.
    include_usage: make the backend send the usage event, whatever the client wants. response_id: what its answer is
    to be called; None: as it likes. fields: other members of ours. All else keeps its bytes.
    """
    if (
        len(fields) == 1
        and model is None
        and not include_usage
        and response_id is None
        and ask.members is None
    ):
        ((name, value),) = fields
        if name == "cache_salt":  # which no usual request has; and this is all that most of them are given
            behind = body.index(b"{") + 1
            return b'%b"cache_salt":%b,%b' % (body[:behind], value, body[behind:])
    edits: list[tuple[Span, bytes]] = _field_edits(body, ask, fields) if fields else []
    if response_id is not None:
        behind = body.index(b"{") + 1
        edits.append(((behind, behind), b'"request_id":"%b",' % response_id.encode()))
    if model is not None:
        members = _decoded(body) if ask.members is None else ask.members
        edits.append((_span_of(body, members, "model"), msgspec.json.encode(model)))
    if include_usage:
        edits.append(_usage_edit(body, ask.members, ask.options))
    if not edits:
        return body
    pieces: list[bytes] = []
    at = 0
    for (start, end), replacement in sorted(edits):
        pieces += (body[at:start], replacement)
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


def _field_edits(body: bytes, ask: Ask, fields: Fields) -> list[tuple[Span, bytes]]:
    edits = []
    added = b""
    for name, value in fields:
        members = ask.members
        if members is None and name != "cache_salt":  # which no usual request has
            members = _decoded(body)
        if members is not None and name in members:
            edits.append((_span_of(body, members, name), value))
        else:
            added += b'"%b":%b,' % (name.encode(), value)
    if added:
        behind = body.index(b"{") + 1
        edits.append(((behind, behind), added))
    return edits


def _usage_edit(body: bytes, members: Members | None, options: Members | None) -> tuple[Span, bytes]:
    if members is None or "stream_options" not in members:
        behind = body.index(b"{") + 1
        return (behind, behind), b'"stream_options":{"include_usage":true},'
    start, end = _span_of(body, members, "stream_options")
    if options is None:
        return (start, end), b'{"include_usage":true}'
    if "include_usage" in options:
        value_start, value_end = _span_of(body[start:end], options, "include_usage")
        return (start + value_start, start + value_end), b"true"
    comma = b"," if options else b""
    return (start + 1, start + 1), b'"include_usage":true' + comma


# -- as nearly all requests are

_Length = Annotated[int, msgspec.Meta(ge=LENGTH_MIN, le=LENGTH_MAX)] | msgspec.UnsetType | None


class _Usual(msgspec.Struct, gc=False):
    """A request for a chat or a text in which nothing needs a second look: no options of a stream, no parameter that
    some hardware does not apply, no value that is to be refused."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=MODEL_CHARACTERS_MAX)]
    max_completion_tokens: _Length = msgspec.UNSET
    max_tokens: _Length = msgspec.UNSET
    n: Annotated[int, msgspec.Meta(ge=1, le=N_MAX)] | msgspec.UnsetType | None = msgspec.UNSET
    stream: bool | msgspec.UnsetType | None = msgspec.UNSET


_ask_in_order = record.in_order(Ask)
_UNSET = msgspec.UNSET
_UNUSUAL = ("cache_salt", "stream_options", *sorted(dialects.NOT_ON_DEVICE))
_USUAL: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Usual", [(name, msgspec.UnsetType, msgspec.UNSET) for name in _UNUSUAL], bases=(_Usual,)
    )
)


def read_usual(body: bytes, operation: Operation) -> Ask | None:
    """The same as `read_any` at a third of its cost, for a short body of a chat's or a text's request.

    None: it is another, or there is something. ASCII only: what is skipped is not checked to be UTF-8.
    """
    if not operation.choices or len(body) > SEARCHED_BYTES_MAX or not body.isascii():
        return None
    if body.find(b"\\u") >= 0:  # `in` asks first whether it is a number, at three times the cost
        return None
    try:
        found = _USUAL.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    stream, n, short, long = found.stream, found.n, found.max_tokens, found.max_completion_tokens
    if (
        body.count(b'"model"') != 1
        or (stream is not _UNSET and body.count(b'"stream"') != 1)
        or (n is not _UNSET and body.count(b'"n"') != 1)
        or (short is not _UNSET and body.count(b'"max_tokens"') != 1)
        or (long is not _UNSET and body.count(b'"max_completion_tokens"') != 1)
    ):
        return None
    max_tokens = length = None
    if isinstance(long, int) and "max_completion_tokens" in operation.lengths:
        max_tokens, length = long, "max_completion_tokens"
    elif isinstance(short, int):
        max_tokens, length = short, "max_tokens"
    return _ask_in_order(
        found.model,  # model
        stream is True,  # stream
        False,  # include_usage
        max_tokens,  # max_tokens
        length,  # length
        n or None,  # n
        (),  # keys
        None,  # members
        None,  # options
        None,  # keeping
        None,  # salt
    )


# -- the fields


_decode_values = msgspec.json.Decoder(Members).decode
_decode_scalar = msgspec.json.Decoder().decode


def _decoded(body: bytes) -> Members:
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


def _options(values: Members) -> Members | None:
    raw = values.get("stream_options")
    if raw is None or _is_null(raw):
        return None
    try:
        options = _decode_values(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest("stream_options must be an object", param="stream_options") from error
    _check_once(bytes(raw), options, _INCLUDE_USAGE, inside="stream_options.")
    return options


def _keeping(values: Members) -> Keeping:
    """vLLM's word for the name of a response is `request_id`. Who could choose it could take another's."""
    if "request_id" in values:
        raise InvalidRequest("request_id cannot be given: the gateway names responses", param="request_id")
    if _flag(values, "background", inside=""):
        raise InvalidRequest(
            "background responses are not served here: nobody would count their tokens", param="background"
        )
    previous = (
        _scalar(values["previous_response_id"], "previous_response_id")
        if "previous_response_id" in values
        else None
    )
    if previous is not None and not isinstance(previous, str):
        raise InvalidRequest("previous_response_id must be a string", param="previous_response_id")
    stored = _flag(values, "store", inside="") if "store" in values else True
    return Keeping(previous=previous, stored=bool(stored))


def _salt(values: Members) -> str | None:
    salt = _scalar(values["cache_salt"], "cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest("cache_salt must be a string", param="cache_salt")
    return salt


def _ignorable(values: Members) -> tuple[str, ...]:
    return tuple(name for name in values if name in dialects.NOT_ON_DEVICE and not _is_null(values[name]))


def _model(raw: msgspec.Raw) -> str:
    value = _scalar(raw, "model")
    if value is None or value == "":
        raise InvalidRequest("you must provide a model", param="model")
    if not isinstance(value, str):
        raise InvalidRequest("model must be a string", param="model")
    if len(value) > MODEL_CHARACTERS_MAX:
        raise InvalidRequest(f"model must have at most {MODEL_CHARACTERS_MAX} characters", param="model")
    return value


def _flag(values: Members, name: str, *, inside: str) -> bool | None:
    raw = values.get(name)
    if raw is None:
        return None
    value = _scalar(raw, inside + name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"{inside}{name} must be true or false", param=inside + name)


def _count(values: Members, name: str, *, count_min: int, count_max: int) -> int | None:
    value = _scalar(values[name], name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():  # JSON has one kind of number, and vLLM takes 5.0 for 5
        value = int(value)
    if type(value) is not int:  # True is an int to Python
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if not count_min <= value <= count_max:
        raise InvalidRequest(f"{name} must be between {count_min} and {count_max}", param=name)
    return value


def _scalar(raw: msgspec.Raw, param: str) -> Any:
    """The value of a member. JSON bounds no number, and the decoder does: 1e999 is JSON, and no value."""
    try:
        return _decode_scalar(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param} is out of range", param=param) from error


def _is_null(raw: msgspec.Raw) -> bool:
    return len(raw) == 4 and bytes(raw) == b"null"


# -- is a key given twice?

_INCLUDE_USAGE = frozenset({"include_usage"})

_MEMBER_BYTES = 5
"""What a second member takes at least, beside its name: quotes, a colon, a digit, a comma."""

_QUOTED = {name: b'"%b"' % name.encode() for one in OPERATIONS.values() for name in one.acted_on}
_QUOTED |= {name: b'"%b"' % name.encode() for name in _INCLUDE_USAGE}


def _check_once(text: bytes, values: Members, once: frozenset[str], *, inside: str) -> None:
    """Raises InvalidRequest if a key of `once` stands twice in an object. values: as decoded from it."""
    if len(text) <= SEARCHED_BYTES_MAX and b"\\u" not in text:
        for name in once:
            if name in values and text.count(_QUOTED[name]) != 1:
                break
        else:
            return
    if len(text) - _compact_bytes(values) > _MEMBER_BYTES:
        _spans(text, values, once, inside=inside)


def _compact_bytes(values: Members) -> int:
    """How long an object of these members is at least: no spaces, and keys of ASCII spelt as they are."""
    return sum(map(len, values.values())) + len("".join(values)) + 4 * len(values) + (1 if values else 2)


# -- spans of the members of one object, in a text that is known to be JSON

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE = rb"[ \t\r\n]*+"
_KEY = re.compile(_SPACE + b"[{,]" + _SPACE + b"(" + _STRING + b")" + _SPACE + b":" + _SPACE, re.DOTALL)
_FLAT_VALUE = re.compile(_STRING + rb'|[^"{}\[\],\s]++', re.DOTALL)
_STRUCTURE = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)


def _span_of(body: bytes, values: Members, wanted: str) -> Span:
    """Where the value of a member is that stands once."""
    if len(body) == _compact_bytes(values):
        before = itertools.takewhile(lambda name: name != wanted, values)
        start = 1 + sum(len(name) + len(values[name]) + 4 for name in before) + len(wanted) + 3
        return start, start + len(values[wanted])
    return _spans(body, values, frozenset(), inside="")[wanted]


def _spans(text: bytes, values: Members, once: Set[str], *, inside: str) -> dict[str, Span]:
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
