"""What applications see through their client libraries, beside what the journal and the servers say of it."""

import dataclasses
import pathlib
import secrets
from collections.abc import Iterator

import pytest

from tests.clients import process
from tests.clients.libraries import FACTS, LIBRARIES, Library
from tests.clients.scene import KEEPALIVE_S, MODELS, Scene, answer_text
from tests.support.gateway import eventually

pytestmark = pytest.mark.clients

SILENCE_MS = 2_500 * KEEPALIVE_S
TOO_MANY_TOKENS = 1_000_000
REFUSALS = {
    "bad_key": {"key": "wb-" + "0" * 64},
    "unknown_model": {"model": "nope"},
    "too_long": {"max_tokens": TOO_MANY_TOKENS},
}
"""What an order has to be for the gateway to refuse it."""


@dataclasses.dataclass(frozen=True)
class Application:
    """A library at work against the scene's gateway."""

    library: Library
    program: process.Program
    scene: Scene

    def ask(self, do: str, **order: object) -> tuple[dict, str]:
        """The library's view of a call, and the call's request id."""
        request_id = f"{self.library.name}-{secrets.token_hex(6)}"
        given = {"base_url": self.scene.base_url, "key": self.scene.gateway.keys["acme"], "model": "m1"}
        return self.program.ask(do, **(given | {"request_id": request_id} | order)), request_id


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: library.name)
def application(
    request: pytest.FixtureRequest, scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """Each library in turn, or those that a test names with `only`."""
    library: Library = request.param
    log: pathlib.Path = tmp_path_factory.mktemp(library.name) / "stderr.log"
    with process.running(library.program, log) as program:
        yield Application(library, program, scene)


def only(ability: str) -> pytest.MarkDecorator:
    """For a test of the libraries that let an application do this, or whose programs know this API."""
    able = [library for library in LIBRARIES if ability in library.can | library.apis]
    return pytest.mark.parametrize("application", able, indirect=True, ids=lambda library: library.name)


def assert_all_agree(
    application: Application, view: dict, request_id: str, *, path: str | None = None
) -> dict:
    """Client, journal and server say the same of a completed call; returns the record."""
    assert view["error"] is None, view["error"]
    record = application.scene.call(request_id)
    (entry,) = application.scene.served(request_id)
    assert (record["outcome"], record["status"], entry["outcome"]) == ("completed", 200, "completed")
    assert entry["path"] == (path or application.library.api)
    assert record["usage"]["source"] == "reported"
    counts = [(one["prompt_tokens"], one["completion_tokens"]) for one in (view, record["usage"], entry)]
    assert counts[0] == counts[1] == counts[2]
    assert view["call_id"] in (None, record["call_id"])
    return record


def assert_refused(scene: Scene, request_id: str, case: str) -> None:
    """One `refused` line, and nothing reached a server."""
    line = scene.refused(request_id)
    assert (line["status"], line["error_code"]) == (FACTS[case]["status_code"], FACTS[case]["code"])
    assert scene.calls(request_id) == []
    assert scene.served(request_id) == []


def assert_raised(application: Application, view: dict, case: str) -> None:
    """The exception is the library's own for this case, with the fields of the gateway's error."""
    error = view["error"]
    assert error is not None, view
    assert error["class"] == application.library.errors[case]
    expected = application.library.error(case)
    assert {name: error.get(name) for name in expected} == expected


@pytest.mark.parametrize("do", ["chat", "stream"])
def test_an_answer_is_read_whole(application: Application, do: str) -> None:
    view, request_id = application.ask(do, max_tokens=20)
    record = assert_all_agree(application, view, request_id)
    (entry,) = application.scene.served(request_id)
    assert view["text"] == answer_text(entry)
    assert len(view["text"].split()) >= 10
    assert view["finish"] == application.library.finish
    assert record["stream"] is (do == "stream")


def test_a_stream_comes_in_pieces(application: Application) -> None:
    """The slow server takes tens of milliseconds a token: what is not passed on at once would come as one piece."""
    view, request_id = application.ask("stream", model="slow", max_tokens=6)
    assert_all_agree(application, view, request_id)
    assert len(view["pieces"]) >= 5


def test_a_long_prefill_sends_comments(scene: Scene) -> None:
    """What the next test's libraries read."""
    scene.simulators["m1"].arm("slow_head", delay_ms=SILENCE_MS)
    ask = {"model": "m1", "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    lines = scene.gateway.post("/v1/chat/completions", ask).read().splitlines()
    assert sum(line.startswith(b":") for line in lines) == 2


def test_comments_before_the_first_token_are_no_trouble(application: Application) -> None:
    """The gateway fills the silence of a long prefill with SSE comments."""
    application.scene.simulators["m1"].arm("slow_head", delay_ms=SILENCE_MS)
    view, request_id = application.ask("stream")
    record = assert_all_agree(application, view, request_id)
    assert record["ttft_ns"] > 2 * KEEPALIVE_S * 10**9
    (entry,) = application.scene.served(request_id)
    assert view["text"] == answer_text(entry)


@pytest.mark.parametrize("do", ["tools", "stream_tools"])
def test_a_tool_is_called(application: Application, do: str) -> None:
    view, request_id = application.ask(do, max_tokens=100)
    assert_all_agree(application, view, request_id)
    if "force_tool" in application.library.can:
        assert view["tool"]["name"] == "get_weather"
        assert isinstance(view["tool"]["arguments"]["city"], str)
        assert isinstance(view["tool"]["arguments"]["days"], int)


@only("responses")
@pytest.mark.parametrize("do", ["responses", "stream_responses"])
def test_the_responses_api(application: Application, do: str) -> None:
    view, request_id = application.ask(do, max_tokens=20)
    record = assert_all_agree(application, view, request_id, path="/v1/responses")
    (entry,) = application.scene.served(request_id)
    assert view["text"] == answer_text(entry)
    assert view["finish"] == "incomplete"
    assert (record["operation"], record["stream"]) == ("responses", do == "stream_responses")


@only("kept")
def test_a_response_is_had_again_and_continued(application: Application) -> None:
    view, request_id = application.ask("kept", max_tokens=20)
    assert view["error"] is None, view["error"]
    first, again, second = view["pieces"]
    assert first == again != second
    calls = eventually(lambda: len(found := application.scene.calls(request_id)) == 3 and found)
    assert [(call["operation"], call["outcome"]) for call in calls] == [
        ("responses", "completed"), ("responses.retrieve", "completed"), ("responses", "completed"),
    ]  # fmt: skip
    assert calls[2]["usage"]["prompt_tokens"] > calls[0]["usage"]["prompt_tokens"]


@only("completion")
def test_the_completions_api(application: Application) -> None:
    view, request_id = application.ask("completion")
    record = assert_all_agree(application, view, request_id, path="/v1/completions")
    (entry,) = application.scene.served(request_id)
    assert view["text"] == answer_text(entry)
    assert record["operation"] == "completions"


@only("embed")
def test_the_embeddings_api(application: Application) -> None:
    view, request_id = application.ask("embed")
    record = assert_all_agree(application, view, request_id, path="/v1/embeddings")
    first, second = view["vectors"]
    assert len(first) == len(second) > 1
    assert first != second
    assert record["operation"] == "embeddings"


@only("models")
def test_the_models_api(application: Application) -> None:
    view, _ = application.ask("models")
    assert view["error"] is None, view["error"]
    assert view["pieces"] == sorted(MODELS)


@only("count")
def test_counting_tokens_costs_none(application: Application) -> None:
    counted, request_id = application.ask("count")
    assert counted["error"] is None, counted["error"]
    usage = application.scene.call(request_id)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (0, 0)
    asked, _ = application.ask("chat")
    assert counted["prompt_tokens"] == asked["prompt_tokens"] > 0


@pytest.mark.parametrize("do", ["chat", "stream"])
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_the_librarys_own_exception(application: Application, case: str, do: str) -> None:
    view, request_id = application.ask(do, **REFUSALS[case])
    assert_raised(application, view, case)
    assert_refused(application.scene, request_id, case)


@only("extra")
@pytest.mark.parametrize("do", ["chat", "stream"])
def test_a_bad_parameter_is_the_librarys_own_exception(application: Application, do: str) -> None:
    view, request_id = application.ask(do, extra=application.library.bad_parameter)
    assert_raised(application, view, "bad_parameter")
    assert_refused(application.scene, request_id, "bad_parameter")


@only("extra")
@pytest.mark.parametrize("do", ["chat", "stream"])
def test_a_servers_own_refusal_is_the_same_exception(application: Application, do: str) -> None:
    """vLLM's 4xx pass with its words; its code is a number."""
    view, request_id = application.ask(do, extra=application.library.rejected)
    assert_raised(application, view, "rejected")
    record = application.scene.call(request_id)
    assert (record["outcome"], record["status"]) == ("refused", 400)


@pytest.mark.parametrize("do", ["chat", "stream"])
def test_a_servers_word_that_a_prompt_is_too_long_is_known(application: Application, do: str) -> None:
    """The gateway does not count the prompt; vLLM does, and its sentence gets the code."""
    view, request_id = application.ask(do, prompt="word " * 5_000)
    assert view["error"] is not None, view
    assert view["error"]["class"] == application.library.errors["too_long"]
    assert application.library.overflow in view["error"]["message"]
    record = application.scene.call(request_id)
    assert (record["outcome"], record["error_code"]) == ("refused", "context_length_exceeded")


def test_leaving_a_stream_stops_the_server(application: Application) -> None:
    """The program lives on, so it is the library that has closed the connection."""
    extra = {"extra": {"ignore_eos": True}} if "extra" in application.library.can else {}
    view, request_id = application.ask("stream", model="slow", leave_after=3, max_tokens=400, **extra)
    assert view["error"] is None
    assert view["pieces"]
    entry = application.scene.closed(request_id)
    assert entry["outcome"] == "aborted"
    record = application.scene.call(request_id)
    assert (record["outcome"], record["usage"]["source"]) == ("client_gone", "counted")
    assert len(view["pieces"]) <= record["usage"]["completion_tokens"] <= entry["completion_tokens"] < 100
    assert record["usage"]["prompt_tokens"] >= 1
    eventually(lambda: application.scene.in_flight()["slow"] == 0)


@only("timeout")
def test_giving_up_on_an_answer_stops_the_server(application: Application) -> None:
    view, request_id = application.ask("chat", model="slow", timeout_s=0.5, max_tokens=100)
    assert view["error"]["class"] == application.library.errors["timeout"]
    assert application.scene.closed(request_id)["outcome"] == "aborted"
    record = application.scene.call(request_id)
    assert (record["outcome"], record["status"]) == ("client_gone", None)
    eventually(lambda: application.scene.in_flight()["slow"] == 0)


def test_a_stream_that_is_cut_is_an_exception_not_an_end(application: Application) -> None:
    application.scene.simulators["m1"].arm("die", after_events=4)
    view, request_id = application.ask("stream", max_tokens=20)
    assert_raised(application, view, "cut")
    assert view["text"]
    record = application.scene.call(request_id)
    assert (record["outcome"], record["status"], record["error_code"]) == (
        "backend_failed",
        200,
        "backend_failed",
    )


@only("responses")
def test_a_cut_response_is_an_exception_too(application: Application) -> None:
    application.scene.simulators["m1"].arm("die", after_events=8)
    view, request_id = application.ask("stream_responses", max_tokens=20)
    assert_raised(application, view, "cut")
    assert view["text"]
    assert application.scene.call(request_id)["outcome"] == "backend_failed"


@only("retries")
@pytest.mark.parametrize("do", ["chat", "stream"])
def test_a_failure_before_the_answer_is_an_exception(application: Application, do: str) -> None:
    application.scene.simulators["m1"].arm("error_500", times=1)
    view, request_id = application.ask(do, retries=0)
    assert_raised(application, view, "failed")
    record = application.scene.call(request_id)
    assert (record["outcome"], record["status"]) == ("backend_failed", 502)


def test_a_library_that_tries_again_has_a_record_for_each_try(application: Application) -> None:
    application.scene.simulators["m1"].arm("error_500", times=1)
    view, request_id = application.ask("chat", retries=None)
    assert view["error"] is None
    failed, completed = eventually(lambda: len(found := application.scene.calls(request_id)) == 2 and found)
    assert (failed["outcome"], completed["outcome"]) == ("backend_failed", "completed")
    assert completed["usage"]["completion_tokens"] == view["completion_tokens"]


@pytest.mark.parametrize("kind", ["busy_429", "busy_503"])
def test_a_library_waits_as_long_as_a_busy_server_asks(application: Application, kind: str) -> None:
    application.scene.simulators["m1"].arm(kind, times=1, retry_after_s=2)
    view, request_id = application.ask("stream", retries=None)
    assert view["error"] is None
    busy, completed = eventually(lambda: len(found := application.scene.calls(request_id)) == 2 and found)
    assert (busy["outcome"], busy["error_code"]) == ("backend_failed", "no_backend")
    assert busy["status"] == int(kind.removeprefix("busy_"))
    assert completed["outcome"] == "completed"
    assert completed["received_ns"] - busy["finished_ns"] > 1.9e9


# -- limits of the tenant's own


@only("retries")
@pytest.mark.parametrize(("tenant", "case"), [("line", "limited"), ("spent", "spent")])
def test_a_limit_is_the_librarys_own_exception(application: Application, tenant: str, case: str) -> None:
    application.scene.use_up(tenant)
    view, request_id = application.ask("chat", key=application.scene.gateway.keys[tenant], retries=0)
    assert_raised(application, view, case)
    assert_refused(application.scene, request_id, case)


@only("retries")
def test_a_library_waits_as_long_as_a_limit_asks(application: Application) -> None:
    application.scene.use_up("paced")
    view, request_id = application.ask("chat", key=application.scene.gateway.keys["paced"], retries=None)
    assert view["error"] is None
    (record,) = eventually(lambda: application.scene.calls(request_id))
    refused = application.scene.all_refused(request_id)
    assert refused
    assert (record["received_ns"] - refused[0]["at_ns"]) < 3.9e9


@only("should_retry")
def test_a_library_does_not_try_again_what_no_try_will_help(application: Application) -> None:
    application.scene.use_up("spent")
    view, request_id = application.ask("chat", key=application.scene.gateway.keys["spent"], retries=None)
    assert_raised(application, view, "spent")
    assert len(eventually(lambda: application.scene.all_refused(request_id))) == 1
