"""POST /tokenize and /detokenize: answered without the engine. Pure.

Source of the bytes: vllm/entrypoints/serve/tokenize/{protocol,serving}.py. A text comes back from its numbers with
single blanks between its words (tokens.py).
"""

from collections.abc import Sequence

from backends.simulator.answers import Choice, Heading, Usage, Writer, dumps
from backends.simulator.apis.chat import Message
from backends.simulator.asks import Ask, Body, Served, check_model, text_of
from backends.simulator.refusals import missing
from backends.simulator.tokens import chat_tokens, tokenize


class TokenizeBody(Body, frozen=True, kw_only=True):
    """Either a prompt or messages."""

    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = None

    id_prefix = ""

    def ask(self, served: Served) -> Ask:
        if self.prompt is None and self.messages is None:
            raise missing(self.given(), "prompt", "messages")
        check_model(self.model, served)
        return Ask(prompts=())

    def writer(self, _heading: Heading, _ask: Ask, served: Served, /) -> Writer:
        if self.prompt is not None:
            tokens = tokenize(self.prompt)
        else:
            tokens = chat_tokens((message.role, text_of(message.content)) for message in self.messages or ())
        return AnswerWriter(
            {
                "count": len(tokens),
                "max_model_len": served.max_model_len,
                "tokens": [served.vocabulary.number(token) for token in tokens],
                "token_strs": tokens if self.return_token_strs else None,
            }
        )


class DetokenizeBody(Body, frozen=True, kw_only=True):
    tokens: list[int]

    id_prefix = ""

    def ask(self, served: Served) -> Ask:
        check_model(self.model, served)
        return Ask(prompts=())

    def writer(self, _heading: Heading, _ask: Ask, served: Served, /) -> Writer:
        return AnswerWriter({"prompt": served.vocabulary.text(self.tokens)})


class AnswerWriter(Writer):
    """An answer that was known with the request."""

    def __init__(self, answer: dict[str, object]) -> None:
        self._answer = answer

    def sized(self, _choices: Sequence[Choice], _usage: Usage, /) -> bytes:
        return dumps(self._answer).encode()
