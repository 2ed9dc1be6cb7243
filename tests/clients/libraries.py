"""The client libraries, and in whose words each says what happened.

Nothing here is a wish: the classes and fields are what the pinned releases do with the gateway's answers, so that
an upgrade of a library, or a change of ours, shows where an application would notice it.
"""

import dataclasses

FACTS: dict[str, dict[str, object]] = {
    "bad_key": {"status_code": 401, "code": "invalid_api_key", "type": "invalid_request_error", "param": None},
    "unknown_model": {
        "status_code": 404, "code": "model_not_found", "type": "invalid_request_error", "param": "model",
    },
    "bad_parameter": {"status_code": 400, "code": None, "type": "invalid_request_error", "param": "n"},
    "rejected": {"status_code": 400, "code": 400, "type": "Bad Request", "param": "body.min_tokens"},
    "too_long": {
        "status_code": 400, "code": "context_length_exceeded", "type": "invalid_request_error",
        "param": "max_tokens",
    },
    "limited": {"status_code": 429, "code": "rate_limit_exceeded", "type": "requests", "param": None},
    "spent": {"status_code": 429, "code": "insufficient_quota", "type": "insufficient_quota", "param": None},
    "failed": {"status_code": 502, "code": "backend_failed", "type": "server_error", "param": None},
    "cut": {"code": "backend_failed", "type": "server_error", "param": None},
}  # fmt: skip
"""The gateway's errors by case, as it sends them; `rejected` is vLLM's own, with its number for a code."""

SAME = {name: name for name in ("status_code", "code", "type", "param")}


@dataclasses.dataclass(frozen=True)
class Library:
    """A client library.

    program: its file in programs/. errors: the class that is raised, by case. fields: where the exception has the
    error's fields; those that are left out do not reach the application. differ: fields that are not as in FACTS, by
    case. bad_parameter, rejected: fields of a body that the gateway refuses, and that only a server does. finish: its
    word for an answer that was cut at the bound. overflow: what the message of a prompt that is too long has to say.
    api: the path that it asks. can: what it lets an application do. apis: what else its program does.
    """

    name: str
    program: str
    errors: dict[str, str]
    fields: dict[str, str] = dataclasses.field(default_factory=lambda: SAME)
    differ: dict[str, dict[str, object]] = dataclasses.field(default_factory=dict)
    bad_parameter: dict[str, object] = dataclasses.field(default_factory=lambda: {"n": "two"})
    rejected: dict[str, object] = dataclasses.field(default_factory=lambda: {"min_tokens": "many"})
    finish: str | None = "length"
    overflow: str = "maximum context length"
    api: str = "/v1/chat/completions"
    can: frozenset[str] = frozenset({"extra", "force_tool", "retries", "should_retry", "timeout"})
    apis: frozenset[str] = frozenset()

    def error(self, case: str) -> dict[str, object]:
        """The fields that its exception has in a case, by the exception's own names."""
        facts = FACTS[case] | self.differ.get(case, {})
        return {own: facts[name] for name, own in self.fields.items() if name in facts}


CODE_AS_TEXT = {"rejected": {"code": "400"}}
"""openai-python, and all that is built on it, make text of vLLM's number."""
COMPLETION_TOKENS = "max_completion_tokens"

OPENAI_PYTHON = Library(
    "openai-python", "openai_python.py",
    {
        "bad_key": "AuthenticationError", "unknown_model": "NotFoundError", "bad_parameter": "BadRequestError",
        "limited": "RateLimitError", "spent": "RateLimitError",
        "rejected": "BadRequestError", "too_long": "BadRequestError", "failed": "InternalServerError",
        "cut": "APIError", "timeout": "APITimeoutError",
    },
    differ=CODE_AS_TEXT,
    apis=frozenset({"responses", "stream_responses", "kept", "completion", "embed", "models"}),
)  # fmt: skip
OPENAI_NODE = dataclasses.replace(
    OPENAI_PYTHON, name="openai-node", program="openai_node.mjs",
    errors=OPENAI_PYTHON.errors | {"timeout": "APIConnectionTimeoutError"},
    differ={},
)  # fmt: skip
AI_SDK = Library(
    "ai-sdk", "ai_sdk.mjs",
    dict.fromkeys(FACTS, "APICallError") | {"cut": "StreamProviderError", "timeout": "DOMException"},
    can=frozenset({"extra", "force_tool", "retries", "timeout"}),  # it tries again whatever 429 it gets
)  # fmt: skip
LANGCHAIN = Library(
    "langchain-openai", "langchain_openai_chat.py",
    {
        "bad_key": "OpenAIAuthenticationError", "unknown_model": "OpenAIModelNotFoundError",
        "bad_parameter": "OpenAIInvalidRequestError", "rejected": "OpenAIInvalidRequestError",
        "limited": "OpenAIRateLimitError", "spent": "OpenAIRateLimitError",
        "too_long": "OpenAIContextOverflowError", "failed": "OpenAIAPIError", "cut": "APIError",
        "timeout": "OpenAITimeoutError",
    },
    differ=CODE_AS_TEXT | {"too_long": {"param": COMPLETION_TOKENS}},
)  # fmt: skip
PYDANTIC_AI = Library(
    "pydantic-ai", "pydantic_ai_model.py",
    {
        "bad_key": "ModelAuthenticationError", "unknown_model": "ModelNotFoundError",
        "bad_parameter": "ModelRequestRejectedError", "rejected": "ModelRequestRejectedError",
        "limited": "ModelRateLimitError", "spent": "ModelQuotaExceededError",
        "too_long": "ModelContextWindowExceededError", "failed": "ModelServerError", "cut": "ModelServerError",
        "timeout": "ModelTimeoutError",
    },
    fields={"status_code": "status_code", "code": "provider_error_code", "type": "provider_error_type"},
    differ=CODE_AS_TEXT | {"too_long": {"param": COMPLETION_TOKENS}},
)  # fmt: skip
LITELLM = Library(
    "litellm", "litellm_sdk.py",
    {
        "bad_key": "AuthenticationError", "unknown_model": "NotFoundError", "bad_parameter": "BadRequestError",
        "limited": "RateLimitError", "spent": "RateLimitError",
        "rejected": "BadRequestError", "too_long": "ContextWindowExceededError", "failed": "BadGatewayError",
        "cut": "MidStreamFallbackError", "timeout": "Timeout",
    },
    fields={"status_code": "status_code"},
)  # fmt: skip
LLM = Library(
    "llm", "llm_command.py",
    dict.fromkeys(FACTS, "CommandFailed"),
    fields={},
    finish=None,
    can=frozenset(),
)  # fmt: skip
ANTHROPIC = Library(
    "anthropic", "anthropic_python.py",
    {
        "bad_key": "AuthenticationError", "unknown_model": "NotFoundError", "bad_parameter": "BadRequestError",
        "limited": "RateLimitError", "spent": "RateLimitError",
        "rejected": "BadRequestError", "too_long": "BadRequestError", "failed": "InternalServerError",
        "cut": "APIStatusError", "timeout": "APITimeoutError",
    },
    fields={"status_code": "status_code", "type": "type"},
    differ={
        "bad_key": {"type": "authentication_error"},
        "unknown_model": {"type": "not_found_error"},
        "rejected": {"type": "invalid_request_error"},
        "limited": {"type": "rate_limit_error"},
        "spent": {"type": "rate_limit_error"},
        "failed": {"type": "api_error"},
        "cut": {"type": "api_error"},
    },
    bad_parameter={"max_tokens": "many"},
    rejected={"messages": []},
    finish="max_tokens",
    overflow="prompt is too long",
    api="/v1/messages",
    apis=frozenset({"count"}),
)  # fmt: skip

LIBRARIES = (OPENAI_PYTHON, OPENAI_NODE, AI_SDK, LANGCHAIN, PYDANTIC_AI, LITELLM, LLM, ANTHROPIC)
