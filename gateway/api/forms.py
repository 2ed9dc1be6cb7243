"""What a form asks for: wire.py for bodies that are multipart/form-data, as audio comes. Pure.

The body goes on byte for byte but for the parts that are replaced. vLLM's forms are flat: what stands within
`stream_options` elsewhere is the field `stream_include_usage`. Numbers and flags are text, read as vLLM reads them.
"""

import re
from collections.abc import Mapping

import msgspec

from backends import dialects
from gateway.api import multipart
from gateway.api.errors import InvalidRequest
from gateway.api.multipart import Form, Part
from gateway.api.operations import INCLUDE_USAGE_FIELD, Operation
from gateway.api.wire import LENGTH_MAX, LENGTH_MIN, MODEL_CHARACTERS_MAX


class FormAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What a form asks for; the fields that it shares with `wire.Ask` mean the same.

    form: where its parts are. fields: those that are acted on, by name.
    """

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    length: str | None
    n: int | None = None
    salt: str | None = None
    keys: tuple[str, ...]
    form: Form
    fields: Mapping[str, Part]


def read_form_ask(body: bytes, content_type: bytes, operation: Operation) -> FormAsk:
    """Read the fields we act on. Raises InvalidRequest, WrongMediaType; with the field at fault where one is."""
    form = multipart.read_form(body, multipart.boundary_of(content_type))
    fields = _acted_on(form, operation)
    texts = {name: _text(body, name, part) for name, part in fields.items()}
    max_tokens = length = None
    for name in operation.lengths:
        if max_tokens is None and name in texts:
            max_tokens, length = _count(texts[name], name), name
    stream = operation.streams and _flag(texts, "stream")
    asked = not operation.usage_option or _flag(texts, INCLUDE_USAGE_FIELD)
    return FormAsk(
        model=_model(texts.get("model")),
        stream=stream,
        include_usage=stream and asked,
        max_tokens=max_tokens,
        length=length,
        keys=_ignorable(form),
        form=form,
        fields=fields,
    )


def splice_form(body: bytes, ask: FormAsk, *, model: str | None, include_usage: bool) -> bytes:
    """The body for a backend; as `wire.splice`."""
    edits: list[tuple[int, int, bytes]] = []
    if model is not None:
        edits.append(_edit(ask.fields["model"], model.encode()))
    if include_usage:
        field = ask.fields.get(INCLUDE_USAGE_FIELD)
        edits.append(_added(ask.form) if field is None else _edit(field, b"true"))
    if not edits:
        return body
    pieces: list[bytes | memoryview] = []
    at, view = 0, memoryview(body)
    for start, end, replacement in sorted(edits):
        pieces += (view[at:start], replacement)
        at = end
    pieces.append(view[at:])
    return b"".join(pieces)


def _edit(part: Part, value: bytes) -> tuple[int, int, bytes]:
    return part.start, part.end, value


def _added(form: Form) -> tuple[int, int, bytes]:
    """A field before all others."""
    head = b'Content-Disposition: form-data; name="%b"' % INCLUDE_USAGE_FIELD.encode()
    return form.start, form.start, b"%b\r\n%b\r\n\r\ntrue\r\n" % (form.delimiter, head)


def _acted_on(form: Form, operation: Operation) -> dict[str, Part]:
    """Of two equal fields two parsers could take different ones."""
    names = {name.encode(): name for name in operation.acted_on}
    fields: dict[str, Part] = {}
    for part in form.parts:
        name = names.get(part.name)
        if name is None:
            continue
        if name in fields:
            raise InvalidRequest(f"{name} is given twice", param=name)
        if part.is_file:
            raise InvalidRequest(f"{name} must be a text, not a file", param=name)
        fields[name] = part
    return fields


def _ignorable(form: Form) -> tuple[str, ...]:
    given = (part.name.decode("latin-1") for part in form.parts if part.end > part.start and not part.is_file)
    return tuple(dict.fromkeys(name for name in given if name in dialects.NOT_ON_DEVICE))


def _text(body: bytes, name: str, part: Part) -> str:
    if part.end - part.start > 4 * MODEL_CHARACTERS_MAX:
        raise InvalidRequest(f"{name} is too long", param=name)
    try:
        return body[part.start : part.end].decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not valid UTF-8", param=name) from error


def _model(value: str | None) -> str:
    if not value:
        raise InvalidRequest("you must provide a model", param="model")
    if len(value) > MODEL_CHARACTERS_MAX:
        raise InvalidRequest(f"model must have at most {MODEL_CHARACTERS_MAX} characters", param="model")
    return value


_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})
"""What pydantic takes for a boolean, in any case."""


def _flag(texts: Mapping[str, str], name: str) -> bool:
    value = texts.get(name, "false").lower()
    if value not in _TRUE and value not in _FALSE:
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return value in _TRUE


_COUNT = re.compile(r"[+-]?([0-9]{1,20})(?:\.0*)?")


def _count(text: str, name: str) -> int:
    if _COUNT.fullmatch(text) is None:
        raise InvalidRequest(f"{name} must be an integer", param=name)
    value = int(text.partition(".")[0])
    if not LENGTH_MIN <= value <= LENGTH_MAX:
        raise InvalidRequest(f"{name} must be between {LENGTH_MIN} and {LENGTH_MAX}", param=name)
    return value
