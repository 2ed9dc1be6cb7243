"""What the answers of all APIs are made of: headings, usage, pieces; and the writer that makes bytes of them. Pure.

Keys, their order, types and framing are those of vLLM 0.32.0 (its entrypoints/*/protocol.py and serving.py; the
captures in tests/data/vllm-0.32.0, which tests compare with). The writers of the APIs are in `apis/`.
"""

import abc
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from backends.simulator.refusals import Refused

VERSION = "0.32.0"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole answer, or of one sequence so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def counts(self) -> str:
        """Its three counts as JSON members, in vLLM's order."""
        total = self.prompt_tokens + self.completion_tokens
        return (
            f'"prompt_tokens":{self.prompt_tokens},"total_tokens":{total},'
            f'"completion_tokens":{self.completion_tokens}'
        )


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One token of one choice. finish_reason: stop or length; None: more tokens come.

    stop_reason: the stop string that ended it. usage: of its sequence, this token included.
    """

    index: int
    text: str
    finish_reason: str | None
    stop_reason: str | None
    usage: Usage


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole sequence: its tokens' texts, and how it ended."""

    texts: list[str]
    finish_reason: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What every piece of one answer repeats. created: seconds since 1970.

    key: 16 hexadecimal digits of which ids inside the answer are made.
    """

    id: str
    created: int
    model: str
    key: str

    @property
    def fingerprint(self) -> str:
        return f"vllm-{VERSION}-{hashlib.sha256(self.model.encode()).hexdigest()[:8]}"

    def inner_id(self, prefix: str, index: int = 0) -> str:
        digest = hashlib.sha256(f"{prefix}{self.key}{index}".encode()).hexdigest()
        return prefix + digest[:16]


class Writer(abc.ABC):
    """Makes the bytes of one answer."""

    @abc.abstractmethod
    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        """The whole body of an answer that is no stream."""


class StreamWriter(Writer):
    """Of a stream: `begin`, then `token` for each, then `end`; each gives whole events.

    early: the stream begins at once, not with the first token.
    """

    early: ClassVar[bool] = False

    @abc.abstractmethod
    def begin(self, prompts: Sequence[Usage], /) -> Iterator[bytes]:
        """Before the first token. prompts: of each sequence, with nothing generated."""

    @abc.abstractmethod
    def token(self, piece: Piece, /) -> Iterator[bytes]:
        """No event, where a token says nothing yet."""

    @abc.abstractmethod
    def end(self, usage: Usage, /) -> Iterator[bytes]:
        """After the last token of all choices."""

    @abc.abstractmethod
    def fail(self, refused: Refused, /) -> Iterator[bytes] | None:
        """Events that say the server failed; the stream ends with them. None: it can say nothing and breaks off."""


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def dumps(value: object) -> str:
    """JSON as the server's framework writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def openai_error(refused: Refused) -> bytes:
    error = {"message": refused.message, "type": refused.type, "param": refused.param, "code": refused.status}
    return dumps({"error": error}).encode()


def models_body(model: str, max_model_len: int, created: int) -> bytes:
    permission = {
        "id": f"modelperm-{hashlib.sha256(model.encode()).hexdigest()[:16]}", "object": "model_permission",
        "created": created, "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
        "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
        "group": None, "is_blocking": False,
    }  # fmt: skip
    card: dict[str, Any] = {
        "id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": None,
        "max_model_len": max_model_len, "permission": [permission],
    }  # fmt: skip
    return dumps({"object": "list", "data": [card]}).encode()
