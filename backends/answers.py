"""The kinds of answer that a model server gives. Pure."""

import enum


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
        return self in _GENERATED

    @property
    def costs_tokens(self) -> bool:
        """Does the model see the prompt? The tokenizer alone costs no tokens."""
        return self not in _TOKENIZED


_GENERATED = frozenset({Answer.CHAT, Answer.COMPLETIONS, Answer.RESPONSES, Answer.MESSAGES})
_TOKENIZED = frozenset({Answer.TOKENS, Answer.TOKEN_COUNT, Answer.TEXT})
