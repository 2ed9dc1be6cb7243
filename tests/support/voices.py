"""Small good answers of each API that streams, every token of which names who said it; and how their ends look.

Usage is 10 and TOKENS in each; but a whole transcript tells seconds. Imports nothing of the product: what a client
would see is judged by these.
"""

import dataclasses
import json
from collections.abc import Callable

from tests.support.sse import Event

TOKENS = 3


@dataclasses.dataclass(frozen=True)
class Api:
    """streamed, whole: voice → events, body. error: a backend's event. is_end, is_error: of a client's events.

    The padding goes into the second token.
    """

    path: str
    streamed: Callable[[str, str], list[bytes]]
    whole: Callable[[str], bytes]
    error: bytes
    is_end: Callable[[Event], bool]
    is_error: Callable[[Event], bool]


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def named(value: dict[str, object]) -> bytes:
    return b"event: %b\n" % str(value["type"]).encode() + data(value)


def token(voice: str, number: int, padding: str) -> str:
    return f"<{voice}>" + (padding if number == 1 else "")


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- chat

CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": TOKENS, "total_tokens": 10 + TOKENS}


def _chunk(delta: dict[str, str] | None, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return data({"id": "c1", "choices": choices, **more})


def _chat_stream(voice: str, padding: str) -> list[bytes]:
    tokens = [_chunk({"content": token(voice, number, padding)}) for number in range(TOKENS)]
    role, finish = _chunk({"role": "assistant", "content": ""}), _chunk({}, "stop")
    return [role, *tokens, finish, _chunk(None, usage=CHAT_USAGE), b"data: [DONE]\n\n"]


def _chat(voice: str) -> bytes:
    message = {"role": "assistant", "content": f"<{voice}>"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return encoded({"id": "c1", "choices": [choice], "usage": CHAT_USAGE})


# -- messages

MESSAGE_USAGE = {"input_tokens": 10, "output_tokens": TOKENS}


def _message_stream(voice: str, padding: str) -> list[bytes]:
    begun = {"id": "m1", "role": "assistant", "usage": {"input_tokens": 10, "output_tokens": 0}}
    deltas = [{"type": "text_delta", "text": token(voice, number, padding)} for number in range(TOKENS)]
    return [
        named({"type": "message_start", "message": begun}),
        named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        *[named({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas],
        named({"type": "content_block_stop", "index": 0}),
        named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": MESSAGE_USAGE}),
        named({"type": "message_stop"}),
    ]


def _message(voice: str) -> bytes:
    content = [{"type": "text", "text": f"<{voice}>"}]
    return encoded({"id": "m1", "content": content, "stop_reason": "end_turn", "usage": MESSAGE_USAGE})


# -- responses

RESPONSE_USAGE = {"input_tokens": 10, "output_tokens": TOKENS, "total_tokens": 10 + TOKENS}


def _response_stream(voice: str, padding: str) -> list[bytes]:
    texts = [token(voice, number, padding) for number in range(TOKENS)]
    kinds: list[dict[str, object]] = [
        {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
        {"type": "response.output_item.added", "item": {"type": "message"}},
        *[{"type": "response.output_text.delta", "delta": text} for text in texts],
        {"type": "response.output_text.done", "text": "".join(texts)},
        {"type": "response.completed", "response": {"status": "completed", "usage": RESPONSE_USAGE}},
    ]
    return [named(kind | {"sequence_number": number}) for number, kind in enumerate(kinds)]


def _response(voice: str) -> bytes:
    output = [{"type": "message", "content": [{"type": "output_text", "text": f"<{voice}>"}]}]
    return encoded({"id": "r1", "status": "completed", "output": output, "usage": RESPONSE_USAGE})


# -- transcripts, of two windows


def _heard(text: str, **finish: str) -> bytes:
    return data({"id": "t1", "choices": [{"delta": {"content": text}} | finish]})


def _transcript_stream(voice: str, padding: str) -> list[bytes]:
    first, *more = [token(voice, number, padding) for number in range(TOKENS)]
    windows = [
        _heard(first),
        _heard("", finish_reason="stop"),
        *map(_heard, more),
        _heard("", finish_reason="stop"),
    ]
    return [*windows, data({"id": "t1", "choices": [], "usage": CHAT_USAGE}), b"data: [DONE]\n\n"]


def _transcript(voice: str) -> bytes:
    return encoded({"text": f"<{voice}>", "usage": {"type": "duration", "seconds": 6}})


DIED = {"message": "died at 10.0.0.5", "type": "server_error"}

APIS = (
    Api(
        path="/v1/chat/completions",
        streamed=_chat_stream,
        whole=_chat,
        error=data({"error": DIED}),
        is_end=lambda event: event.done,
        is_error=lambda event: event.data.startswith('{"error"'),
    ),
    Api(
        path="/v1/messages",
        streamed=_message_stream,
        whole=_message,
        error=named({"type": "error", "error": DIED}),
        is_end=lambda event: event.type == "message_stop",
        is_error=lambda event: event.type == "error",
    ),
    Api(
        path="/v1/responses",
        streamed=_response_stream,
        whole=_response,
        error=named({"type": "response.failed", "response": {"status": "failed", "error": DIED}}),
        is_end=lambda event: event.type == "response.completed",
        is_error=lambda event: event.type == "error",
    ),
    Api(
        path="/v1/audio/transcriptions",
        streamed=_transcript_stream,
        whole=_transcript,
        error=data({"error": DIED}),
        is_end=lambda event: event.done,
        is_error=lambda event: event.data.startswith('{"error"'),
    ),
)
