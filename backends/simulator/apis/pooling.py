"""POST /v1/embeddings, /pooling, /classify, rerank and score: prompts are read and nothing is generated. Pure.

Source of the bytes: vllm/entrypoints/pooling/{embed,pooling,classify,scoring}/{protocol,serving}.py, for a model that
embeds: a score is the cosine of two embeddings, and each text is read once. One server does all this and generates,
too; a vLLM does one of embedding, classifying and generating.
"""

import base64
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from backends.simulator.answers import Choice, Heading, Usage, Writer, dumps
from backends.simulator.apis.chat import Message, conversation
from backends.simulator.apis.completions import prompts_of
from backends.simulator.asks import Ask, Body, Served, check_prompts
from backends.simulator.embeddings import SIZE, cosine, embed, pack, softmax
from backends.simulator.refusals import Refused, bad_parameter, bad_request, missing
from backends.simulator.tokens import tokenize

Texts = str | list[str]

CLASSES = 2


class _PoolingBody(Body, frozen=True, kw_only=True):
    """What is asked for is to read `texts`."""

    id_prefix = "score-"

    def _read(self, prompts: tuple[list[str], ...], served: Served) -> Ask:
        """Raises Refused."""
        if self.model and self.model != served.model:
            raise Refused(404, f"The model `{self.model}` does not exist.", "NotFoundError")
        check_prompts(prompts, served)
        return Ask(prompts=prompts, reads=True)

    def _read_pairs(self, first: list[str], second: list[str], served: Served) -> Ask:
        """Raises Refused."""
        if not second:
            raise bad_request("At least one text_pair element must be given")
        if len(first) not in (1, len(second)):
            raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
        return self._read(tuple(map(tokenize, (*first, *second))), served)


class _TextsBody(_PoolingBody, frozen=True, kw_only=True):
    """input: a text, tokens as numbers, or a list of either. messages: in place of it, a conversation."""

    input: str | list[str | int | list[int]] | None = None
    messages: list[Message] | None = None

    forms: ClassVar[tuple[str, ...]] = ("input", "messages")
    """What each form of the body has that the others have not, as vLLM names them where there is none of it."""

    def ask(self, served: Served) -> Ask:
        if self.input is None and self.messages is None:
            raise missing(self.given(), *self.forms)
        self.check()
        return self._read(self._prompts(), served)

    def check(self) -> None:
        """The fields of this API. Raises Refused."""

    def _prompts(self) -> tuple[list[str], ...]:
        """Raises Refused."""
        if self.input is None:
            return (conversation(self.messages or ()),)
        if not self.input:
            raise bad_request(
                "The decoder prompt cannot be empty"
                if self.input == ""
                else "You must pass at least one prompt"
            )
        return prompts_of(self.input)


class EmbeddingsBody(_TextsBody, frozen=True, kw_only=True):
    """dimensions: the first so many of 64."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    id_prefix = "embd-"
    forms = ("input", "messages", "messages", "messages", "input", "messages", "input")

    def check(self) -> None:
        if self.dimensions is not None and not 1 <= self.dimensions <= SIZE:
            raise bad_request(f"dimensions is from 1 to {SIZE}, got {self.dimensions}.")

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        return EmbeddingWriter(heading, ask.prompts, self.encoding_format or "float", self.dimensions or SIZE)


class PoolingBody(_TextsBody, frozen=True, kw_only=True):
    """What the pooler makes of each text: of the tasks only `embed`."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    task: str | None = None

    id_prefix = "pooling-"
    forms = ("input", "messages", "data")

    def check(self) -> None:
        if self.dimensions is not None:
            raise bad_parameter("dimensions is currently not supported", "dimensions")
        if self.task not in (None, "embed"):
            raise bad_parameter(
                f"Try switching the model's pooling_task via --pooler-config.task {self.task}.", "task"
            )

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        return VectorWriter(heading, ask.prompts, self.encoding_format or "float")


class ClassifyBody(_TextsBody, frozen=True, kw_only=True):
    """Two classes without a name of their own. use_activation: if false, the numbers before they are probabilities."""

    use_activation: bool | None = None

    id_prefix = "classify-"

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        return ClassWriter(heading, ask.prompts, activated=self.use_activation is not False)


class RerankBody(_PoolingBody, frozen=True, kw_only=True):
    """top_n: 0 is all documents."""

    query: str
    documents: Texts
    top_n: int | None = 0

    def ask(self, served: Served) -> Ask:
        return self._read_pairs([self.query], _listed(self.documents), served)

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        return RerankWriter(heading, ask.prompts, _listed(self.documents), self.top_n or 0)


class ScoreBody(_PoolingBody, frozen=True, kw_only=True):
    """One text with many, or pairs; vLLM has four pairs of names for them."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None

    def ask(self, served: Served) -> Ask:
        first, second = self._sides()
        return self._read_pairs(first, second, served)

    def _sides(self) -> tuple[list[str], list[str]]:
        """Raises Refused."""
        named = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
        for one, other in named:
            first, second = getattr(self, one), getattr(self, other)
            if first is not None and second is not None:
                return _listed(first), _listed(second)
        absent = [name for pair in named for name in pair if getattr(self, name) is None]
        raise missing(self.given(), *absent)

    def writer(self, heading: Heading, ask: Ask, _served: Served, /) -> Writer:
        first, _ = self._sides()
        return ScoreWriter(heading, ask.prompts[: len(first)], ask.prompts[len(first) :])


def _listed(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


class VectorWriter(Writer):
    """One vector a text; the kinds of answer differ in what they call it."""

    object_name = "pooling"
    vector_name = "data"

    def __init__(
        self, heading: Heading, prompts: Sequence[Sequence[str]], encoding_format: str, size: int = SIZE
    ) -> None:
        self._heading = heading
        self._prompts = prompts
        self._base64 = encoding_format == "base64"
        self._size = size

    def sized(self, _choices: Sequence[Choice], usage: Usage, /) -> bytes:
        data = [
            {
                "index": index,
                "object": self.object_name,
                self.vector_name: self._shown(embed(prompt, self._size)),
            }
            for index, prompt in enumerate(self._prompts)
        ]
        return _listing(self._heading, data, usage)

    def _shown(self, vector: list[float]) -> list[float] | str:
        return base64.b64encode(pack(vector)).decode() if self._base64 else vector


class EmbeddingWriter(VectorWriter):
    object_name = vector_name = "embedding"


class ClassWriter(Writer):
    """activated: what is shown of each class is a probability."""

    def __init__(self, heading: Heading, prompts: Sequence[Sequence[str]], *, activated: bool) -> None:
        self._heading = heading
        self._prompts = prompts
        self._activated = activated

    def sized(self, _choices: Sequence[Choice], usage: Usage, /) -> bytes:
        data = [self._class(index, embed(prompt, CLASSES)) for index, prompt in enumerate(self._prompts)]
        return _listing(self._heading, data, usage)

    def _class(self, index: int, logits: list[float]) -> dict[str, Any]:
        label = f"LABEL_{logits.index(max(logits))}"
        probs = softmax(logits) if self._activated else logits
        return {"index": index, "label": label, "probs": probs, "num_classes": len(probs)}


class ScoreWriter(Writer):
    def __init__(
        self, heading: Heading, first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]
    ) -> None:
        self._heading = heading
        self._first = first
        self._second = second

    def sized(self, _choices: Sequence[Choice], usage: Usage, /) -> bytes:
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores(self._first, self._second))
        ]
        return _listing(self._heading, data, usage)


class RerankWriter(Writer):
    """prompts: the query's tokens, then each document's."""

    def __init__(
        self, heading: Heading, prompts: Sequence[Sequence[str]], documents: list[str], top_n: int
    ) -> None:
        self._heading = heading
        self._prompts = prompts
        self._documents = documents
        self._top_n = top_n or len(documents)

    def sized(self, _choices: Sequence[Choice], usage: Usage, /) -> bytes:
        results: list[dict[str, Any]] = [
            {
                "index": index,
                "document": {"text": self._documents[index], "multi_modal": None},
                "relevance_score": score,
            }
            for index, score in enumerate(scores(self._prompts[:1], self._prompts[1:]))
        ]
        results.sort(key=lambda result: -float(result["relevance_score"]))
        counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        heading = {"id": self._heading.id, "model": self._heading.model, "usage": counts}
        return dumps(heading | {"results": results[: self._top_n]}).encode()


def scores(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]) -> list[float]:
    """Of each of `second` with its partner in `first`, or with the only one there."""
    ones = [embed(tokens) for tokens in first]
    partners = ones * len(second) if len(ones) == 1 else ones
    return [cosine(one, embed(tokens)) for one, tokens in zip(partners, second, strict=True)]


def _listing(heading: Heading, data: list[dict[str, Any]], usage: Usage) -> bytes:
    counts = {
        "prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens, "completion_tokens": 0,
        "prompt_tokens_details": None, "completion_tokens_details": None,
    }  # fmt: skip
    answer = {
        "id": heading.id, "object": "list", "created": heading.created, "model": heading.model, "data": data,
        "usage": counts,
    }  # fmt: skip
    return dumps(answer).encode()
