"""What backends do differently: parameters they do not apply, and the shapes of their errors. Pure.

Sources: the vLLM-Neuron plugin's documentation of on-device sampling (it takes temperature, top_k and top_p
only) and vLLM's OpenAI server, versions 0.7.2 to 0.33.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

NEURON_FAMILIES = ("inf", "trn")
"""How the instance families with Neuron devices begin: inf2, trn1, trn1n, trn2, trn3."""

NOT_ON_DEVICE = frozenset({
    "frequency_penalty", "logit_bias", "logprobs", "min_p", "presence_penalty",
    "prompt_logprobs", "repetition_penalty", "seed", "top_logprobs",
})  # fmt: skip

_CONTEXT_LENGTH = re.compile(
    "maximum context length|context length is only|maximum input length|maximum model length|max_model_len",
    re.IGNORECASE,
)
"""How vLLM's versions say it, from 0.3 ("This model's maximum context length is …") to 0.33 ("You passed …
input tokens … However, the model's context length is only …, resulting in a maximum input length of …")."""


class ErrorShape(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a backend worded it.

    code: a name such as "context_length_exceeded"; a number, as vLLM sends, is its HTTP status and no code.
    openai: it came as OpenAI's error object, with all of `message`, `type`, `param` and `code`.
    """

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None
    openai: bool = False


UNREADABLE = ErrorShape(message="the model's server refused the request and did not say why")


def ignored(family: str | None, keys: Iterable[str]) -> tuple[str, ...]:
    """Which of a request's parameters hardware of this instance family is documented not to apply, sorted.

    family: as "inf2"; None (unknown) and GPU families apply all.
    """
    if family is None or not family.startswith(NEURON_FAMILIES):
        return ()
    return tuple(sorted(NOT_ON_DEVICE.intersection(keys)))


def is_context_length(status: int, body: bytes) -> bool:
    """Does this answer say that prompt and answer outgrew the backend's compiled length?"""
    if status != 400:
        return False
    shape = error_of(body)
    return shape.code == "context_length_exceeded" or _CONTEXT_LENGTH.search(shape.message) is not None


def names_context_length(body: bytes) -> bool:
    """Does a page say so, whatever it is and whatever its status? Some proxies, and old servers, answer 500."""
    return _CONTEXT_LENGTH.search(body.decode("utf-8", "replace")) is not None


def error_of(body: bytes) -> ErrorShape:
    """Read an error body in any of the shapes that vLLM's versions and its framework send.

    {"error": {"message", "type", "param", "code"}}, the same without `param` and `code` (Anthropic's), the flat
    {"object": "error", "message", …} of V0 and {"type": "error", "message", …} of Responses events, {"error": "…"} of
    the key check, {"detail": … } of FastAPI. Anything else is UNREADABLE.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNREADABLE
    return error_in(value) or UNREADABLE


def error_in(value: Any) -> ErrorShape | None:
    """The error in a decoded JSON value; None: there is none."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return _from_fields(error, openai=error.keys() >= {"message", "type", "param", "code"})
    if isinstance(error, str) and error:
        return ErrorShape(message=error)
    if value.get("object") == "error" or value.get("type") == "error":
        return _from_fields(value, openai=False)
    return _from_detail(value.get("detail"))


def _from_fields(fields: dict[str, Any], *, openai: bool) -> ErrorShape:
    message = _text(fields.get("message"))
    return ErrorShape(
        message=message or UNREADABLE.message,
        type=_text(fields.get("type")),
        param=_text(fields.get("param")),
        code=_text(fields.get("code")),
        openai=openai and message is not None,
    )


def _from_detail(detail: Any) -> ErrorShape | None:
    """FastAPI: a text, or a list of {"loc": ["body", "n"], "msg": "…"}; the first one names the fault."""
    if isinstance(detail, str) and detail:
        return ErrorShape(message=detail)
    if not isinstance(detail, list) or not detail or not isinstance(detail[0], dict):
        return None
    message = _text(detail[0].get("msg"))
    if message is None:
        return None
    loc = detail[0].get("loc")
    names = (
        [part for part in loc if isinstance(part, str) and part != "body"] if isinstance(loc, list) else []
    )
    return ErrorShape(message=message, param=".".join(names) or None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
