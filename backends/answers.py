"""The kinds of answer that a model server gives, and who reads each. Pure."""

import enum

from backends.chunks import ChunkReader
from backends.messages import MessagesReader
from backends.reader import StreamReader
from backends.responses import ResponsesReader
from backends.sse import EVENT_BYTES_MAX


class Answer(enum.Enum):
    """What an answer is made of, and so how it is read; one for each form, not for each path."""

    CHAT = "chat"  # OpenAI: choices with messages, or chunks with deltas
    COMPLETIONS = "completions"  # OpenAI: choices with texts
    RESPONSES = "responses"  # OpenAI: an output, or `response.…` events
    MESSAGES = "messages"  # Anthropic: content blocks
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    RERANK = "rerank"
    TOKENS = "tokens"  # of a text, with their number
    TOKEN_COUNT = "token_count"  # Anthropic: only how many they would be
    TEXT = "text"  # of tokens

    @property
    def generates(self) -> bool:
        """Are tokens generated? An embedding, a score, a count have no completion: it is 0, not unknown."""
        return self in _READERS

    @property
    def costs_tokens(self) -> bool:
        """Does the model compute anything? The tokenizer alone costs no tokens."""
        return self not in _TOKENIZED


_TOKENIZED = frozenset({Answer.TOKENS, Answer.TOKEN_COUNT, Answer.TEXT})

_READERS: dict[Answer, type[StreamReader]] = {
    Answer.CHAT: ChunkReader,
    Answer.COMPLETIONS: ChunkReader,
    Answer.RESPONSES: ResponsesReader,
    Answer.MESSAGES: MessagesReader,
}


def reader_for(answer: Answer, *, strip_usage: bool, event_bytes_max: int = EVENT_BYTES_MAX) -> StreamReader:
    """The reader of a stream of such answers. Only of one that is generated there are streams."""
    return _READERS[answer](strip_usage=strip_usage, event_bytes_max=event_bytes_max)
