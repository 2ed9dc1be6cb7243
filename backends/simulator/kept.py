"""The responses that a server keeps, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE=1. Pure.

Source: vllm/entrypoints/openai/responses/serving.py, `response_store` and `msg_store`, which have no bound.
"""

import msgspec

from backends.simulator.refusals import Refused

Said = tuple[str, str]
"""Role and text."""


class Kept(msgspec.Struct, frozen=True):
    """A response that was made. body: as it is shown. said: the conversation, the response's own text last."""

    body: bytes
    said: tuple[Said, ...]


class KeptResponses:
    """By id; of more than `responses_max` the oldest go first."""

    def __init__(self, responses_max: int) -> None:
        self._responses_max = responses_max
        self._kept: dict[str, Kept] = {}

    def keep(self, response_id: str, kept: Kept) -> None:
        self._kept[response_id] = kept
        if len(self._kept) > self._responses_max:
            del self._kept[next(iter(self._kept))]

    def get(self, response_id: str) -> Kept:
        """Raises Refused."""
        kept = self._kept.get(response_id)
        if kept is None:
            message = f"Response with id '{response_id}' not found."
            raise Refused(404, message, "invalid_request_error", "response_id")
        return kept

    def cancel(self, response_id: str) -> Kept:
        """All that are kept are whole, so there is nothing to cancel. Raises Refused."""
        self.get(response_id)
        raise Refused(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")
