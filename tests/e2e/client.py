"""An application: makes the captured cases' calls with the `openai` SDK, and tells what it saw."""

import dataclasses
import typing

import openai

from tests.e2e.cases import CHAT, Case

ANSWER_S_MAX = 120


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the SDK made of an answer that ended. usage: from the usage object it was shown, if any."""

    request_id: str
    status: int
    served_by: str | None = None
    call_id: str | None = None
    text: str = ""
    usage: tuple[int, int] | None = None
    usage_events: int = 0
    error: openai.APIStatusError | None = None


class Application:
    """Makes calls through one SDK client; it never retries, so a call is a request."""

    def __init__(self, port: int, key: str) -> None:
        self._client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=ANSWER_S_MAX
        )

    def __enter__(self) -> "Application":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def models(self) -> list[str]:
        return [model.id for model in self._client.models.list()]

    def call(self, case: Case, request_id: str) -> Answer:
        """Make the case's call, and read its answer to the end."""
        body = fields(case)
        try:
            if body.get("stream"):
                return self._stream(case, body, request_id)
            return self._sized(case, body, request_id)
        except openai.APIStatusError as error:
            return Answer(request_id, error.status_code, error=error)

    def abandon_stream(self, case: Case, request_id: str, after_events: int) -> None:
        """Leave a stream once `after_events` events have come."""
        stream = self._resource(case).create(**fields(case), extra_headers=named(request_id))
        for count, _ in enumerate(stream, start=1):
            if count == after_events:
                break
        stream.close()

    def abandon_sized(self, case: Case, request_id: str, after_s: float) -> None:
        """Give up on a sized answer after `after_s`."""
        resource = self._resource(case)
        try:
            resource.create(**fields(case), extra_headers=named(request_id), timeout=after_s)
        except openai.APITimeoutError:
            return
        raise AssertionError(f"{request_id}: the answer came within {after_s} s")

    def _resource(self, case: Case) -> typing.Any:
        return self._client.chat.completions if case.path == CHAT else self._client.completions

    def _sized(self, case: Case, body: dict[str, typing.Any], request_id: str) -> Answer:
        raw = self._resource(case).with_raw_response.create(**body, extra_headers=named(request_id))
        answer = raw.parse()
        return Answer(
            request_id,
            raw.status_code,
            raw.headers.get("x-weighbridge-served-by"),
            raw.headers.get("x-weighbridge-call-id"),
            "".join(text(choice) for choice in answer.choices),
            (answer.usage.prompt_tokens, answer.usage.completion_tokens),
        )

    def _stream(self, case: Case, body: dict[str, typing.Any], request_id: str) -> Answer:
        stream = self._resource(case).create(**body, extra_headers=named(request_id))
        said, usages = [], []
        for event in stream:
            said += [text(choice) for choice in event.choices]
            if event.usage is not None:
                usages.append((event.usage.prompt_tokens, event.usage.completion_tokens))
        return Answer(
            request_id,
            stream.response.status_code,
            stream.response.headers.get("x-weighbridge-served-by"),
            stream.response.headers.get("x-weighbridge-call-id"),
            "".join(said),
            usages[-1] if usages else None,
            len(usages),
        )


def fields(case: Case) -> dict[str, typing.Any]:
    """Arguments for the SDK; those it has no name for go in its `extra_body`."""
    assert isinstance(case.body, dict)
    known = {key: value for key, value in case.body.items() if key != "ignore_eos"}
    return known | {"extra_body": {key: case.body[key] for key in case.body.keys() - known.keys()}}


def named(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def text(choice: typing.Any) -> str:
    """What a choice says, whichever kind it is of."""
    said = getattr(choice, "message", None) or getattr(choice, "delta", None) or choice
    return getattr(said, "content", None) or getattr(said, "text", None) or ""
