"""The kinds of answer that a model server gives, and who reads each. Pure."""

import enum

from backends.chunks import ChunkReader
from backends.messages import MessagesReader
from backends.reader import StreamReader
from backends.responses import ResponsesReader
from backends.sse import EVENT_BYTES_MAX
from backends.transcripts import TranscriptReader


class Answer(enum.Enum):
    """What an answer is made of, and so how it is read; one for each form, not for each path.

    generates: tokens are generated. An embedding, a score, a class, a count have no completion: it is 0, not unknown.
    costs_tokens: the model computes something. The tokenizer alone costs no tokens.
    reads_text: it is asked in text, from whose size its tokens can be estimated.
    """

    CHAT = "chat", True  # OpenAI: choices with messages, or chunks with deltas
    COMPLETIONS = "completions", True  # OpenAI: choices with texts
    RESPONSES = "responses", True  # OpenAI: an output, or `response.…` events
    MESSAGES = "messages", True  # Anthropic: content blocks
    TRANSCRIPT = "transcript", True, True, False  # OpenAI: the text of what was heard, or chunks with deltas
    EMBEDDINGS = "embeddings", False
    SCORE = "score", False
    RERANK = "rerank", False
    POOLING = "pooling", False  # what the pooler made of each text; a plug-in's own shape
    CLASSIFY = "classify", False  # a probability for each class
    TOKENS = "tokens", False, False  # of a text, with their number
    TOKEN_COUNT = "token_count", False, False  # Anthropic: only how many they would be
    TEXT = "text", False, False  # of tokens
    KEPT = "kept", False, False  # OpenAI: a response that was made before, and was counted then

    __hash__ = object.__hash__  # looked up for every call; an Enum's own is computed from the name each time

    generates: bool
    costs_tokens: bool
    reads_text: bool

    def __new__(
        cls, value: str, generates: bool, costs_tokens: bool = True, reads_text: bool = True
    ) -> "Answer":
        """A member, with what is asked of it for each call at hand."""
        self = object.__new__(cls)
        self._value_ = value
        self.generates, self.costs_tokens, self.reads_text = generates, costs_tokens, reads_text
        return self


_READERS: dict[Answer, type[StreamReader]] = {
    Answer.CHAT: ChunkReader,
    Answer.COMPLETIONS: ChunkReader,
    Answer.RESPONSES: ResponsesReader,
    Answer.MESSAGES: MessagesReader,
    Answer.TRANSCRIPT: TranscriptReader,
}


def reader_for(answer: Answer, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> StreamReader:
    """The reader of a stream of such answers. Only of one that is generated there are streams."""
    return _READERS[answer](strip_usage=strip_usage, event_bytes_max=event_bytes_max)
