"""What the streams of chat and completions share: chunks, a usage event, `[DONE]`. Pure."""

from collections.abc import Iterator

from backends.simulator.answers import Heading, StreamWriter, Usage, openai_error, quote
from backends.simulator.asks import StreamOptions
from backends.simulator.refusals import Refused

DONE = b"data: [DONE]\n\n"


class ChunkWriter(StreamWriter):
    """Events that are chunks. The last one of the stream before `[DONE]` has the fingerprint."""

    def __init__(self, heading: Heading, object_: str, options: StreamOptions | None) -> None:
        self._heading = heading
        self._start = start(object_, heading)
        self._fingerprint = quote(heading.fingerprint)
        self._include_usage = options is not None and bool(options.include_usage)
        self._continuous = (
            self._include_usage and options is not None and bool(options.continuous_usage_stats)
        )

    def fail(self, refused: Refused, /) -> Iterator[bytes]:
        yield b"data: " + openai_error(refused) + b"\n\n"
        yield DONE

    def _chunk(self, choice: str, usage: Usage, *, stamped: bool = False, tail: str = "") -> bytes:
        """An event with one choice. stamped: it may be the last. usage: of the choice so far, shown if asked for."""
        running = f',"usage":{{{usage.counts()}{self._running_details()}}}' if self._continuous else ""
        stamp = f',"system_fingerprint":{self._fingerprint}' if stamped and not self._include_usage else ""
        return f"data: {self._start}[{choice}]{stamp}{running}{tail}}}\n\n".encode()

    def _running_details(self) -> str:
        """Members of a running usage after its counts."""
        return ""

    def _usage_event(self, usage: Usage, details: str) -> bytes:
        counts = f'{{{usage.counts()},"prompt_tokens_details":{{{details}}}}}'
        return (
            f'data: {self._start}[],"usage":{counts},"system_fingerprint":{self._fingerprint}}}\n\n'.encode()
        )


def start(object_: str, heading: Heading) -> str:
    return (
        f'{{"id":{quote(heading.id)},"object":"{object_}","created":{heading.created},'
        f'"model":{quote(heading.model)},"choices":'
    )


def sized_usage(usage: Usage, *, created: str) -> str:
    return (
        f'{{{usage.counts()},"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens},'
        f'"created_cache_tokens":{created},"multimodal_tokens":null}},"completion_tokens_details":null}}'
    )
