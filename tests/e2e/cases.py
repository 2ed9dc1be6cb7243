"""The exchanges that are recorded from the real vLLM: what each asks, and why it is there."""

import dataclasses
import json
import typing

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GENERATES = (CHAT, COMPLETIONS)
RESPONSES, MESSAGES, COUNT_TOKENS = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
EMBEDDINGS = "/v1/embeddings"
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORES = ("/score", "/v1/score")
POOLING, CLASSIFY = "/pooling", "/classify"

Json = dict[str, typing.Any]

USER: Json = {"role": "user", "content": "Name three rivers."}
SYSTEM: Json = {"role": "system", "content": "You weigh what passes and write the ticket. " * 20}
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Json = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city", "parameters": CITY},
}
WEATHER_IN_ROME = "What is the weather in Rome?"
ASK_WEATHER: Json = {
    "messages": [{"role": "user", "content": WEATHER_IN_ROME}],
    "tools": [WEATHER],
}
CALL_WEATHER: Json = ASK_WEATHER | {"tool_choice": "required", "max_tokens": 60}
NAME_WEATHER: Json = CALL_WEATHER | {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
CITY_FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
USAGE: Json = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS: Json = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
STREAM: Json = {"stream": True}


@dataclasses.dataclass(frozen=True)
class Case:
    """One request. body: a JSON object, or raw bytes where the point is that they are not one."""

    name: str
    path: str
    about: str
    body: Json | bytes | None = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    def request(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: model-server", "accept: application/json"]
        if self.body is None:
            body = b""
        else:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode() + body


def openai_cases(model: str, max_model_len: int) -> list[Case]:
    """Chat, completions and what is around them; too long a prompt is so for `max_model_len` tokens."""

    def chat(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "messages": [USER], "temperature": 0, "max_tokens": 12}
        return Case(name, CHAT, about, common | fields)

    def completion(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "prompt": "The longest river is", "temperature": 0, "max_tokens": 12}
        return Case(name, COMPLETIONS, about, common | fields)

    too_long = "word " * max_model_len
    long_chat: Json = {"messages": [{"role": "user", "content": too_long}]}
    two_prompts: Json = {"prompt": ["One river is", "Two rivers are"]}
    not_asked: Json = {"stream": True, "stream_options": {"include_usage": False}}
    cached = {"messages": [SYSTEM, USER]}
    request_id = (("x-request-id", "ticket-1"),)
    return [
        Case("models", "/v1/models", "what is served", method="GET"),
        Case("version", "/version", "the server's version", method="GET"),
        Case("health", "/health", "empty when well", method="GET"),
        Case("ping", "/ping", "the same by another name", method="GET"),
        Case("models_head", "/v1/models", "HEAD is not allowed", method="HEAD"),
        Case("chat_get", CHAT, "GET is not allowed", method="GET"),
        Case("chat_options", CHAT, "OPTIONS is not allowed", method="OPTIONS"),
        Case("no_such_path", "/v1/no-such-path", "404 of the framework, not of the API", method="GET"),
        chat("chat", "a sized answer, cut by max_tokens"),
        chat("chat_max_completion_tokens", "the newer name wins", max_completion_tokens=5),
        chat("chat_stop", "ended by a stop string", stop=[" River"]),
        chat("chat_n2", "two choices", n=2, temperature=0.7, seed=7),
        chat("chat_logprobs", "with logprobs", logprobs=True, top_logprobs=2, max_tokens=3),
        chat("chat_tool", "a tool call", **CALL_WEATHER),
        chat("chat_tool_not_called", "tools offered, and an answer in words", **ASK_WEATHER),
        chat("chat_tool_named", "a tool call by its function's name", **NAME_WEATHER),
        chat("chat_json", "an answer to a schema", response_format=CITY_FORMAT),
        chat("chat_warm", "a long prompt, first time", **cached),
        chat("chat_cached", "the same again: part of the prompt was cached", **cached),
        dataclasses.replace(chat("chat_request_id", "the client's id"), headers=request_id),
        chat("chat_stream", "no usage asked for", stream=True),
        chat("chat_stream_no_usage", "include_usage false", **not_asked),
        chat("chat_stream_usage", "usage event at the end", **USAGE),
        chat("chat_stream_continuous", "running usage in each event", **CONTINUOUS),
        chat("chat_stream_stop", "ended by a stop string", **USAGE, stop=[" River"]),
        chat("chat_stream_n2", "two choices, interleaved", **USAGE, n=2, temperature=0.7, seed=7),
        chat("chat_stream_logprobs", "with logprobs", **USAGE, logprobs=True, top_logprobs=2, max_tokens=3),
        chat("chat_stream_tool", "a tool call", **USAGE, **CALL_WEATHER),
        chat("chat_stream_tool_named", "a tool call by its function's name", **USAGE, **NAME_WEATHER),
        chat("chat_stream_json", "an answer to a schema", **USAGE, response_format=CITY_FORMAT),
        chat("chat_stream_cached", "part of the prompt was cached", **USAGE, **cached),
        completion("completions", "a sized answer"),
        completion("completions_n2", "two choices", n=2, temperature=0.7, seed=7),
        completion("completions_prompts", "two prompts in one call", **two_prompts),
        completion("completions_echo", "the prompt comes back", echo=True),
        completion("completions_logprobs", "with logprobs", logprobs=2, max_tokens=3),
        completion("completions_stream", "no usage asked for", stream=True),
        completion("completions_stream_usage", "usage event at the end", **USAGE),
        completion("completions_stream_continuous", "running usage in each event", **CONTINUOUS),
        completion("completions_stream_unicode", "a character of several tokens: events with an empty text",
                   **USAGE, prompt="🚛 🚛 🚛 🚛 🚛 🚛 🚛"),
        completion("completions_stream_prompts", "two prompts", **USAGE, **two_prompts),
        completion("completions_stream_logprobs", "with logprobs", **USAGE, logprobs=2, max_tokens=3),
        chat("unknown_model", "404", model="no-such-model"),
        chat("unknown_model_stream", "404, and no stream", model="no-such-model", **USAGE),
        completion("completions_unknown_model", "404", model="no-such-model"),
        Case("broken_json", CHAT, "400", b'{"model": "' + model.encode() + b'", "messages": ['),
        chat("empty_messages", "an empty list", messages=[]),
        Case("no_messages", CHAT, "a required field is missing", {"model": model}),
        chat("wrong_type", "a field of the wrong type", max_tokens="many"),
        chat("stream_options_without_stream", "400", stream_options={"include_usage": True}),
        chat("too_long", "the prompt alone is over the context length", **long_chat),
        chat("too_long_stream", "the same, as a stream", **long_chat, **USAGE),
        chat("too_long_max_tokens", "with max_tokens it is: they are cut", max_tokens=max_model_len),
        completion("completions_too_long", "the prompt alone is over the context length", prompt=too_long),
    ]  # fmt: skip


def api_cases(model: str, max_model_len: int) -> list[Case]:
    """The other paths of a model that generates: OpenAI's responses, Anthropic's messages, the tokenizer."""
    too_long = "word " * max_model_len
    long_message: Json = {"messages": [{"role": "user", "content": too_long}]}
    cached = {"system": SYSTEM["content"]}

    def response(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "input": USER["content"], "temperature": 0, "max_output_tokens": 12}
        return Case(name, RESPONSES, about, common | fields)

    def message(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "messages": [USER], "temperature": 0, "max_tokens": 12}
        return Case(name, MESSAGES, about, common | fields)

    def count(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, COUNT_TOKENS, about, {"model": model, "messages": [USER]} | fields)

    def tokenize(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, TOKENIZE, about, {"model": model} | fields)

    def detokenize(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, DETOKENIZE, about, {"model": model, "tokens": [5820, 1296, 7626, 30]} | fields)

    function = {"type": "function", "strict": True} | WEATHER["function"]
    ask: Json = {"input": WEATHER_IN_ROME, "tools": [function], "max_output_tokens": 60}
    required: Json = ask | {"tool_choice": "required"}
    named: Json = ask | {"tool_choice": {"type": "function", "name": "weather"}}
    tool = {"name": "weather", "description": "The weather of a city", "input_schema": CITY, "strict": True}
    use: Json = {"messages": ASK_WEATHER["messages"], "tools": [tool], "max_tokens": 60}
    use_any: Json = use | {"tool_choice": {"type": "any"}}
    use_named: Json = use | {"tool_choice": {"type": "tool", "name": "weather"}}
    turns: Json = {
        "input": [
            {"role": "user", "content": WEATHER_IN_ROME},
            {"type": "function_call", "call_id": "call-1", "name": "weather", "arguments": '{"city":"Rome"}'},
            {"type": "function_call_output", "call_id": "call-1", "output": "Sunny."},
        ],
    }
    return [
        response("responses", "cut by max_output_tokens: incomplete"),
        response("responses_stop", "ended by a stop string: completed", stop=[" River"]),
        response("responses_instructions", "instructions, and parts", instructions="Be brief.",
                 input=[{"role": "user", "content": [{"type": "input_text", "text": USER["content"]}]}]),
        response("responses_turns", "what a tool said goes back", **turns),
        response("responses_tool", "a function call", **required),
        response("responses_tool_named", "a function call by its name", **named),
        response("responses_json", "an answer to a schema",
                 text={"format": {"type": "json_schema", "name": "city", "schema": CITY}}),
        response("responses_warm", "a long prompt, first time", instructions=SYSTEM["content"]),
        response("responses_cached", "the same again: a part was cached", instructions=SYSTEM["content"]),
        response("responses_stream", "cut by max_output_tokens", **STREAM),
        response("responses_stream_stop", "ended by a stop string", **STREAM, stop=[" River"]),
        response("responses_stream_tool", "a function call", **STREAM, **required),
        response("responses_stream_tool_named", "a function call by its name", **STREAM, **named),
        response("responses_stream_cached", "a part was cached", **STREAM, instructions=SYSTEM["content"]),
        response("responses_unknown_model", "404", model="no-such-model"),
        response("responses_unknown_model_stream", "404, and no stream", model="no-such-model", **STREAM),
        Case("responses_no_input", RESPONSES, "a required field is missing", {"model": model}),
        response("responses_wrong_type", "a field of the wrong type", max_output_tokens="many"),
        response("responses_too_long", "the prompt alone is over the context length", input=too_long),
        response("responses_background", "the server keeps no answers", background=True),
        Case("responses_missing", f"{RESPONSES}/resp_0", "an answer that it does not hold", method="GET"),
        message("messages", "cut by max_tokens"),
        message("messages_stop", "ended by a stop sequence", stop_sequences=[" River"]),
        message("messages_system", "a system prompt, and parts", system="Be brief.",
                messages=[{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]),
        message("messages_tool", "any tool", **use_any),
        message("messages_tool_named", "a tool by its name", **use_named),
        message("messages_warm", "a long prompt, first time", **cached),
        message("messages_cached", "the same again: input_tokens leaves out what was cached", **cached),
        message("messages_stream", "cut by max_tokens", **STREAM),
        message("messages_stream_stop", "ended by a stop sequence", **STREAM, stop_sequences=[" River"]),
        message("messages_stream_tool", "any tool", **STREAM, **use_any),
        message("messages_stream_tool_named", "a tool by its name", **STREAM, **use_named),
        message("messages_stream_cached", "a part was cached", **STREAM, **cached),
        message("messages_unknown_model", "404, in Anthropic's shape", model="no-such-model"),
        Case("messages_no_max_tokens", MESSAGES, "a required field is missing: OpenAI's shape",
             {"model": model, "messages": [USER]}),
        message("messages_empty", "an empty list", messages=[]),
        message("messages_too_long", "the prompt alone is over the context length", **long_message),
        message("messages_too_long_stream", "the same, as a stream", **long_message, **STREAM),
        count("count_tokens", "what a message would cost"),
        count("count_tokens_tools", "with a system prompt and a tool", system="Be brief.", tools=[tool]),
        count("count_tokens_unknown_model", "404", model="no-such-model"),
        Case("count_tokens_no_messages", COUNT_TOKENS, "a required field is missing", {"model": model}),
        tokenize("tokenize", "a text", prompt=USER["content"]),
        tokenize("tokenize_strings", "and the tokens' texts", prompt=USER["content"], return_token_strs=True),
        tokenize("tokenize_messages", "a conversation", messages=[USER]),
        tokenize("tokenize_unknown_model", "404", model="no-such-model", prompt="A river"),
        tokenize("tokenize_no_prompt", "neither prompt nor messages"),
        detokenize("detokenize", "a text from its tokens"),
        detokenize("detokenize_unknown_model", "404", model="no-such-model"),
        detokenize("detokenize_wrong_type", "tokens that are none", tokens="x"),
        Case("no_embeddings", EMBEDDINGS, "a generating model has none", {"model": model, "input": "A river"}),
        Case("no_rerank", "/v1/rerank", "nor this", {"model": model, "query": "A", "documents": ["B"]}),
    ]  # fmt: skip


def pooling_cases(model: str, max_model_len: int) -> list[Case]:
    """The paths of a model that embeds; rerank and score compare its embeddings, pooling shows them."""
    documents = ["The Rhine", "A lorry", "Salt"]

    def embed(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, EMBEDDINGS, about, {"model": model, "input": "A river"} | fields)

    def rerank(**fields: typing.Any) -> Json:
        return {"model": model, "query": "A river", "documents": documents} | fields

    def pool(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, POOLING, about, {"model": model, "input": "A river"} | fields)

    pair: Json = {"model": model, "text_1": "A river", "text_2": documents}
    return [
        Case("models", "/v1/models", "what is served", method="GET"),
        embed("embeddings", "one text, as floats", encoding_format="float"),
        embed("embeddings_base64", "one text, as base64", encoding_format="base64"),
        embed("embeddings_list", "two texts", input=["A river", "A lorry"], encoding_format="base64"),
        embed("embeddings_tokens", "one text, as tokens", input=[5820, 1296], encoding_format="base64"),
        embed("embeddings_bytes", "binary: the usage is in a header", encoding_format="bytes"),
        embed("embeddings_unknown_model", "404", model="no-such-model"),
        embed("embeddings_empty", "an empty list", input=[]),
        embed("embeddings_dimensions", "which this model cannot choose", dimensions=8),
        embed("embeddings_too_long", "over the context length", input="word " * max_model_len),
        Case("embeddings_no_input", EMBEDDINGS, "a required field is missing", {"model": model}),
        *(Case(f"rerank{n or ''}", path, "all documents", rerank()) for n, path in enumerate(RERANKS)),
        Case("rerank_top_n", "/v1/rerank", "the best of them", rerank(top_n=1)),
        Case("rerank_unknown_model", "/v1/rerank", "404", rerank(model="no-such-model")),
        Case("rerank_no_documents", "/v1/rerank", "a required field is missing", {"model": model, "query": "A"}),
        *(Case(f"score{n or ''}", path, "one text with three", pair) for n, path in enumerate(SCORES)),
        Case("score_pairs", "/v1/score", "by other names, pairwise",
             {"model": model, "queries": ["A river", "A road"], "documents": ["The Rhine", "A lorry"]}),
        Case("score_no_second", "/v1/score", "a required field is missing", {"model": model, "text_1": "A river"}),
        pool("pooling", "one text, as floats"),
        pool("pooling_base64", "two texts, as base64", input=["A river", "A lorry"], encoding_format="base64"),
        pool("pooling_tokens", "one text, as tokens", input=[5820, 1296], encoding_format="base64"),
        pool("pooling_task", "by its task's name", task="embed", encoding_format="base64"),
        pool("pooling_bytes", "binary: the usage is in a header", encoding_format="bytes"),
        Case("pooling_messages", POOLING, "a conversation",
             {"model": model, "messages": [USER], "encoding_format": "base64"}),
        pool("pooling_unknown_model", "404", model="no-such-model"),
        pool("pooling_empty", "an empty list", input=[]),
        pool("pooling_dimensions", "which cannot be chosen", dimensions=8),
        pool("pooling_other_task", "which this server does not do", task="token_embed"),
        pool("pooling_too_long", "over the context length", input="word " * max_model_len),
        Case("pooling_no_input", POOLING, "a required field is missing", {"model": model}),
        Case("no_classify", CLASSIFY, "an embedding model does not classify", {"model": model, "input": "A river"}),
        Case("tokenize", TOKENIZE, "it has a tokenizer, too", {"model": model, "prompt": "A river"}),
        Case("no_chat", CHAT, "an embedding model does not chat", {"model": model, "messages": [USER]}),
    ]  # fmt: skip


def classifying_cases(model: str, max_model_len: int) -> list[Case]:
    """The paths of a model that classifies; pooling shows the same probabilities."""

    def classify(name: str, about: str, **fields: typing.Any) -> Case:
        return Case(name, CLASSIFY, about, {"model": model, "input": "Is it a river?"} | fields)

    return [
        Case("models", "/v1/models", "what is served", method="GET"),
        classify("classify", "one text"),
        classify("classify_list", "two texts", input=["Is it a river?", "Is it a lorry?"]),
        classify("classify_tokens", "one text, as tokens", input=[5820, 1296]),
        classify("classify_raw", "without activation: no probabilities", use_activation=False),
        Case("classify_messages", CLASSIFY, "a conversation", {"model": model, "messages": [USER]}),
        classify("classify_unknown_model", "404", model="no-such-model"),
        classify("classify_empty", "an empty list", input=[]),
        classify("classify_wrong_type", "a field of the wrong type", input=7),
        classify("classify_too_long", "over the context length", input="word " * max_model_len),
        Case("classify_no_input", CLASSIFY, "a required field is missing", {"model": model}),
        Case("pooling", POOLING, "the same as vectors", {"model": model, "input": "Is it a river?"}),
        Case("no_embeddings", EMBEDDINGS, "a classifier has none", {"model": model, "input": "A river"}),
        Case("no_score", "/v1/score", "nor this with two classes", {"model": model, "text_1": "A", "text_2": "B"}),
    ]  # fmt: skip
