"""Answers in vLLM 0.32.0's bytes: keys, their order, types and framing. Pure.

Source: vllm/entrypoints/openai/{chat_completion,completion}/{protocol,serving}.py of that version, and the captures in
tests/data/vllm-0.32.0, which tests compare with. Streams leave out fields that were never set, sized
answers carry all of them.
"""

import hashlib
import json
from collections.abc import Sequence

import msgspec

VERSION = "0.32.0"
DONE = b"data: [DONE]\n\n"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def counts(self) -> str:
        total = self.prompt_tokens + self.completion_tokens
        return (
            f'"prompt_tokens":{self.prompt_tokens},"total_tokens":{total},'
            f'"completion_tokens":{self.completion_tokens}'
        )


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    finish_reason: str


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What every piece of one answer repeats. created: seconds since 1970."""

    id: str
    created: int
    model: str

    @property
    def fingerprint(self) -> str:
        return f"vllm-{VERSION}-{hashlib.sha256(self.model.encode()).hexdigest()[:8]}"


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _Writer:
    """What both have. include_usage: the stream will end with a usage event."""

    def __init__(self, heading: Heading, object_: str, *, include_usage: bool) -> None:
        self._start = _start(object_, heading)
        self._fingerprint = quote(heading.fingerprint)
        self._include_usage = include_usage

    def _stamp(self, finish_reason: str | None) -> str:
        if finish_reason is None or self._include_usage:
            return ""
        return f',"system_fingerprint":{self._fingerprint}'

    def _usage_event(self, usage: Usage, details: str) -> bytes:
        counts = f'{{{usage.counts()},"prompt_tokens_details":{{{details}}}}}'
        return (
            f'data: {self._start}[],"usage":{counts},"system_fingerprint":{self._fingerprint}}}\n\n'.encode()
        )


class ChatWriter(_Writer):
    """Pieces of the answer to /v1/chat/completions."""

    id_prefix = "chatcmpl-"

    def __init__(self, heading: Heading, *, include_usage: bool) -> None:
        super().__init__(heading, "chat.completion.chunk", include_usage=include_usage)
        self._sized_start = _start("chat.completion", heading)

    def opening(self, index: int, /) -> bytes:
        """The event with the role, one a choice before its first token."""
        delta = '{"role":"assistant","content":""}'
        choice = f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return f'data: {self._start}[{choice}],"prompt_token_ids":null,"prompt_text":null}}\n\n'.encode()

    def event(self, index: int, text: str, finish_reason: str | None) -> bytes:
        """One token. The last of a choice has the fingerprint, unless a usage event will have it."""
        start = f'{{"index":{index},"delta":{{"content":{quote(text)}}},"logprobs":null,'
        if finish_reason is None:
            choice = f'{start}"finish_reason":null,"token_ids":null}}'
        else:
            choice = f'{start}"finish_reason":"{finish_reason}","stop_reason":null,"token_ids":null}}'
        return f"data: {self._start}[{choice}]{self._stamp(finish_reason)}}}\n\n".encode()

    def usage_event(self, usage: Usage) -> bytes:
        return self._usage_event(usage, f'"cached_tokens":{usage.cached_tokens},"created_cache_tokens":0')

    def sized(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        shown = ",".join(
            f'{{"index":{index},"message":{{"role":"assistant","content":{quote(choice.text)},"refusal":null,'
            '"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
            f'"finish_reason":"{choice.finish_reason}","stop_reason":null,"token_ids":null,"routed_experts":null}}'
            for index, choice in enumerate(choices)
        )
        return (
            f'{self._sized_start}[{shown}],"service_tier":null,'
            f'"system_fingerprint":{self._fingerprint},"usage":{_sized_usage(usage, created="0")},'
            '"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,'
            '"ec_transfer_params":null,"metrics":null}'
        ).encode()


class CompletionWriter(_Writer):
    """Pieces of the answer to /v1/completions."""

    id_prefix = "cmpl-"

    def __init__(self, heading: Heading, *, include_usage: bool) -> None:
        super().__init__(heading, "text_completion", include_usage=include_usage)

    def opening(self, _index: int, /) -> bytes:
        """Nothing: a completion has no role."""
        return b""

    def event(self, index: int, text: str, finish_reason: str | None) -> bytes:
        """One token. The last of a choice has the fingerprint, unless a usage event will have it."""
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        choice = (
            f'{{"index":{index},"text":{quote(text)},"logprobs":null,"finish_reason":{reason},"stop_reason":null,'
            '"prompt_token_ids":null,"token_ids":null}'
        )
        return f"data: {self._start}[{choice}]{self._stamp(finish_reason)}}}\n\n".encode()

    def usage_event(self, usage: Usage) -> bytes:
        return self._usage_event(usage, f'"cached_tokens":{usage.cached_tokens}')

    def sized(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        shown = ",".join(
            f'{{"index":{index},"text":{quote(choice.text)},"logprobs":null,'
            f'"finish_reason":"{choice.finish_reason}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,'
            '"prompt_token_ids":null,"routed_experts":null}'
            for index, choice in enumerate(choices)
        )
        return (
            f'{self._start}[{shown}],"service_tier":null,"system_fingerprint":{self._fingerprint},'
            f'"usage":{_sized_usage(usage, created="null")},'
            '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
        ).encode()


Writer = ChatWriter | CompletionWriter


def _start(object_: str, heading: Heading) -> str:
    return (
        f'{{"id":{quote(heading.id)},"object":"{object_}","created":{heading.created},'
        f'"model":{quote(heading.model)},"choices":'
    )


def _sized_usage(usage: Usage, *, created: str) -> str:
    return (
        f'{{{usage.counts()},"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens},'
        f'"created_cache_tokens":{created},"multimodal_tokens":null}},"completion_tokens_details":null}}'
    )


def error_body(status: int, message: str, type_: str, param: str | None) -> bytes:
    error = {"message": message, "type": type_, "param": param, "code": status}
    return json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")).encode()


def models_body(model: str, max_model_len: int, created: int) -> bytes:
    permission = {
        "id": f"modelperm-{hashlib.sha256(model.encode()).hexdigest()[:16]}", "object": "model_permission",
        "created": created, "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
        "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
        "group": None, "is_blocking": False,
    }  # fmt: skip
    card = {
        "id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": None,
        "max_model_len": max_model_len, "permission": [permission],
    }  # fmt: skip
    return json.dumps({"object": "list", "data": [card]}, ensure_ascii=False, separators=(",", ":")).encode()
