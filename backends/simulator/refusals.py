"""Bodies that are decoded, and those that are refused in vLLM's words. Pure.

A body is refused with the status, type, param and words of vLLM 0.32.0 where a capture shows them
(tests/data/vllm-0.32.0), else in the same shape. A field that no body type names is accepted and has no effect,
as an unknown field has none in vLLM.
"""

import json
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

INVALID = "Bad Request"
"""The type of an error in the body itself; the API's own are `BadRequestError`, `NotFoundError`, …"""

_POSITION = re.compile(r"\[(\d+)\]")

T = TypeVar("T")


class Refused(Exception):
    """An answer that is an error. type, param: of the error body; `code` is the status."""

    def __init__(self, status: int, message: str, type_: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param


def read(body: bytes, body_type: type[T]) -> T:
    """Decode a body. Raises Refused."""
    try:
        return msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError as error:
        raise _invalid(_parse(body), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _parse(body)
        raise _unreadable() from error  # JSON to one parser and not to the other: NaN, half a surrogate pair


def take(fields: Mapping[str, object], body_type: type[T]) -> T:
    """A body of a form's fields, whose values are texts or files. Raises Refused."""
    try:
        return msgspec.convert(fields, body_type, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(fields, str(error)) from error


def bad_request(message: str) -> Refused:
    return Refused(400, message, "BadRequestError")


def bad_parameter(message: str, param: str, value: int | None = None) -> Refused:
    extra = f"parameter={param}" + ("" if value is None else f", value={value}")
    return Refused(400, f"{message} ({extra})", "BadRequestError", param)


def missing(given: int, *fields: str) -> Refused:
    """`fields` are not in a body of `given` fields: each alternative's, as vLLM lists them."""
    count = f"{len(fields)} validation error{'' if len(fields) == 1 else 's'}"
    lines = (
        f"  {_missing(f'body.{field}', f'<dict of {given} items>')}"
        for field in fields
    )  # fmt: skip
    return Refused(400, "\n".join((f"{count}:", *lines)), INVALID, f"body.{fields[0]}")


def _missing(where: str, given: str) -> dict[str, str]:
    return {"type": "missing", "loc": where, "msg": "Field required", "input": given}


def _parse(body: bytes) -> object:
    """The body as JSON. Raises Refused where vLLM's parser, which is this one, would stop."""
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        detail = {
            "type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": "<dict of 0 items>",
            "ctx": {"error": error.msg},
        }  # fmt: skip
        raise Refused(400, f"1 validation error:\n  {detail}", INVALID, where) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _unreadable() from error


def _unreadable() -> Refused:
    return Refused(400, "There was an error parsing the body", INVALID)


def _invalid(given: object, problem: str) -> Refused:
    """problem: msgspec's words, as in "Expected `int`, got `str` - at `$.max_tokens`"."""
    message, _, path = problem.partition(" - at `$")
    path = _POSITION.sub(r".\1", path.rstrip("`"))
    detail: dict[str, str]
    if message.startswith("Object missing required field"):
        where = f"body{path}.{message.split('`')[1]}"
        summary = f"<dict of {len(given)} items>" if isinstance(given, dict) and not path else "<dict>"
        detail = _missing(where, summary)
    else:
        where = f"body{path}"
        detail = {"type": "type_error", "loc": where, "msg": message}
    return Refused(400, f"1 validation error:\n  {detail}", INVALID, where)
