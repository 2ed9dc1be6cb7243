"""POST /v1/completions. Pure.

Source of the bytes: vllm/entrypoints/openai/completion/{protocol,serving}.py.
"""

from collections.abc import Iterator, Sequence

from backends.simulator import forms, logprobs
from backends.simulator.answers import Choice, Heading, Piece, Usage, Writer, dumps, quote
from backends.simulator.apis.chunks import DONE, ChunkWriter, sized_usage
from backends.simulator.asks import (
    Ask,
    SamplingBody,
    Served,
    StreamOptions,
    check_prompts,
    choices,
    room,
    stop_strings,
)
from backends.simulator.refusals import bad_parameter
from backends.simulator.tokens import tokenize

TOKENS_DEFAULT = 16
"""Where `max_tokens` is left out; a chat without it may fill the context."""


class CompletionBody(SamplingBody, frozen=True, kw_only=True):
    """prompt: a text, tokens as numbers, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = False

    id_prefix = "cmpl-"

    def ask(self, served: Served) -> Ask:
        self.check(served)
        prompts = self._prompts()
        n = choices(self.n, len(prompts))
        longest = check_prompts(prompts, served)
        wanted = TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens
        return Ask(
            prompts=prompts,
            n=n,
            max_tokens=room(wanted, longest, served),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            salt=self.cache_salt,
            script=forms.script(None, self.structured_outputs),
            stops=stop_strings(self.stop),
            stream=self.streams,
        )

    def _prompts(self) -> tuple[list[str], ...]:
        """Raises Refused."""
        if not self.prompt:
            message = "Either prompt or prompt_embeds must be provided and non-empty."
            raise bad_parameter(message, "prompt")
        return prompts_of(self.prompt)

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        echoes = [""] * (len(ask.prompts) * ask.n)
        if self.echo:
            texts = self._texts(ask)
            echoes = [text for text in texts for _ in range(ask.n)]
        return CompletionWriter(heading, self.stream_options, self.logprobs, echoes)

    def _texts(self, ask: Ask) -> list[str]:
        """Of the prompts; one that came as numbers has none but these."""
        given = [self.prompt] if isinstance(self.prompt, str) or len(ask.prompts) == 1 else self.prompt
        assert isinstance(given, list)
        return [
            text if isinstance(text, str) else " ".join(tokens)
            for text, tokens in zip(given, ask.prompts, strict=True)
        ]


def prompts_of(given: str | list[str | int | list[int]]) -> tuple[list[str], ...]:
    """The tokens of each prompt. given: not empty."""
    if isinstance(given, str):
        return (tokenize(given) or [given],)
    if all(isinstance(item, int) for item in given):
        return ([str(item) for item in given],)
    return tuple(
        (tokenize(item) or [item]) if isinstance(item, str) else [str(token) for token in _numbers(item)]
        for item in given
    )


def _numbers(item: int | list[int]) -> list[int]:
    return [item] if isinstance(item, int) else item


class CompletionWriter(ChunkWriter):
    """logprobs: alternatives a token; None is no log probabilities at all. echoes: text before each choice's own."""

    def __init__(
        self, heading: Heading, options: StreamOptions | None, top: int | None, echoes: Sequence[str]
    ) -> None:
        super().__init__(heading, "text_completion", options)
        self._top = top
        self._echoes = list(echoes)
        self._said = [0] * len(echoes)

    def begin(self, _prompts: Sequence[Usage], /) -> Iterator[bytes]:
        yield from ()  # a completion has no role

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        reason = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
        stop_reason = "null" if piece.stop_reason is None else quote(piece.stop_reason)
        echo, self._echoes[piece.index] = self._echoes[piece.index], ""
        shown = self._logprobs([piece.text], self._said[piece.index] + len(echo))
        self._said[piece.index] += len(echo) + len(piece.text)
        choice = (
            f'{{"index":{piece.index},"text":{quote(echo + piece.text)},"logprobs":{shown},"finish_reason":{reason},'
            f'"stop_reason":{stop_reason},"prompt_token_ids":null,"token_ids":null}}'
        )
        yield self._chunk(choice, piece.usage, stamped=piece.finish_reason is not None)

    def end(self, usage: Usage, /) -> Iterator[bytes]:
        if self._include_usage:
            yield self._usage_event(usage, f'"cached_tokens":{usage.cached_tokens}')
        yield DONE

    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        shown = ",".join(self._choice(*each) for each in enumerate(choices))
        return (
            f'{self._start}[{shown}],"service_tier":null,"system_fingerprint":{self._fingerprint},'
            f'"usage":{sized_usage(usage, created="null")},'
            '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
        ).encode()

    def _choice(self, index: int, choice: Choice) -> str:
        echo = self._echoes[index]
        stop_reason = "null" if choice.stop_reason is None else quote(choice.stop_reason)
        return (
            f'{{"index":{index},"text":{quote(echo + choice.text)},'
            f'"logprobs":{self._logprobs(choice.texts, len(echo))},"finish_reason":"{choice.finish_reason}",'
            f'"stop_reason":{stop_reason},"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,'
            '"routed_experts":null}'
        )

    def _logprobs(self, texts: list[str], offset: int) -> str:
        return "null" if self._top is None else dumps(logprobs.of_completion(texts, self._top, offset))
