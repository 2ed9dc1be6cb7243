"""Responses that a server keeps, asked for again, continued and cancelled: two servers, two workers, two tenants."""

import contextlib
import http.client
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from backends.simulator.settings import Settings
from tests.support import simulator
from tests.support.gateway import Gateway, eventually, running
from tests.support.sse import parse

pytestmark = pytest.mark.integration

RESPONSES = "/v1/responses"
ASK = {"model": "m1", "input": "Name three rivers", "max_output_tokens": 9}
SETTINGS = Settings(instance_type="inf2.48xlarge", model="m1", time_scale=0.01)
UNKNOWN = "resp_" + "0123456789abcdef" * 2


class Scene:
    """The gateway and the servers behind it, by name."""

    def __init__(self, gateway: Gateway, servers: dict[str, simulator.Running]) -> None:
        self.gateway = gateway
        self.servers = servers

    def ask(
        self, method: str, path: str, body: object = None, *, tenant: str = "acme"
    ) -> tuple[int, bytes, dict[str, str]]:
        """Each on a connection of its own: the kernel picks the worker."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=30)
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.gateway.keys[tenant]}", "content-type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers)

    def create(self, *, tenant: str = "acme", **fields: object) -> "Made":
        status, body, headers = self.ask("POST", RESPONSES, ASK | fields, tenant=tenant)
        assert status == 200, body
        return Made(self, body, headers)

    def record(self, call_id: str) -> dict[str, Any]:
        lines = self.gateway.lines
        return eventually(lambda: next((one for one in lines("call") if one["call_id"] == call_id), None))

    def asked(self) -> int:
        """How many requests the servers have had so far."""
        return sum(len(server.log()) for server in self.servers.values())


class Made:
    """A response that was made. It may be a stream."""

    def __init__(self, scene: Scene, body: bytes, headers: dict[str, str]) -> None:
        self.body = body
        if body.startswith(b"event:"):
            body = json.dumps(parse(body)[-1].json["response"]).encode()
        self.response: dict[str, Any] = json.loads(body)
        self.id: str = self.response["id"]
        self.record = scene.record(headers["x-weighbridge-call-id"])
        self.backend: str = self.record["backend"]


@pytest.fixture(scope="module", params=["direct", "plain"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(simulator.running(SETTINGS)) for name in ("a", "b")}
        backends = [
            {"name": name, "url": server.url, "model": "m1", "instance_type": "inf2.48xlarge", "slots": 8}
            for name, server in servers.items()
        ]
        models = [
            {"name": name, "tiers": [{"backends": members}]}
            for name, members in (("m1", ["a", "b"]), ("only-a", ["a"]), ("only-b", ["b"]))
        ]
        gateway = stack.enter_context(
            running(
                tmp_path_factory.mktemp(request.param),
                backends,
                tenants=("acme", "globex"),
                workers=2,
                models=models,
                env={"WEIGHBRIDGE_DRIVER": request.param},
            )
        )
        yield Scene(gateway, servers)


@pytest.mark.parametrize("model", ["only-a", "only-b"])
def test_it_is_had_again_byte_for_byte_from_any_worker(scene: Scene, model: str) -> None:
    made = scene.create(model=model)
    assert made.backend == model[-1]
    seen = set()

    def retrieve() -> bool:
        status, body, headers = scene.ask("GET", f"{RESPONSES}/{made.id}")
        assert (status, body) == (200, made.body)
        record = scene.record(headers["x-weighbridge-call-id"])
        assert (record["backend"], record["model"]) == (made.backend, made.record["model"])
        seen.add(record["call_id"].partition("-")[0])
        return len(seen) == 2

    eventually(retrieve)


def test_one_that_was_streamed_is_kept_too(scene: Scene) -> None:
    made = scene.create(stream=True, model="only-b")
    status, body, _ = scene.ask("GET", f"{RESPONSES}/{made.id}?include=x&stream=false")
    assert (status, json.loads(body)) == (200, made.response)


def test_its_tokens_are_counted_once(scene: Scene) -> None:
    made = scene.create()
    assert made.record["usage"]["completion_tokens"] == made.response["usage"]["output_tokens"] > 0
    _, _, headers = scene.ask("GET", f"{RESPONSES}/{made.id}")
    record = scene.record(headers["x-weighbridge-call-id"])
    usage = record["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["source"]) == (0, 0, "reported")
    assert (record["operation"], record["outcome"], record["status"]) == (
        "responses.retrieve", "completed", 200,
    )  # fmt: skip
    assert (record["cost_pusd"], record["slot_ns"], record["unpriced_reason"]) == (0, 0, None)
    assert (record["tenant"], record["body_bytes"]) == ("acme", 0)


@pytest.mark.parametrize("server", ["a", "b"])
def test_a_conversation_goes_on_where_it_lies(scene: Scene, server: str) -> None:
    first = scene.create(model=f"only-{server}")
    for _ in range(4):  # the plan alone would send half of them elsewhere
        second = scene.create(previous_response_id=first.id, input="And the longest?")
        assert second.backend == server
        assert second.response["previous_response_id"] == first.id
        assert second.response["usage"]["input_tokens"] > first.response["usage"]["input_tokens"]
        assert second.record["plan"]["able"] == [server]
        assert [left["reason"] for left in second.record["plan"]["left_out"]] == ["not the holder"]
    third = scene.create(previous_response_id=second.id, stream=True)
    assert third.backend == server


def test_a_client_never_names_a_response(scene: Scene) -> None:
    made = scene.create()
    before = scene.asked()
    for given in (made.id, "resp_mine", None):
        status, body, _ = scene.ask("POST", RESPONSES, ASK | {"request_id": given}, tenant="globex")
        assert (status, json.loads(body)["error"]["param"]) == (400, "request_id")
    assert scene.asked() == before


def foreign(scene: Scene, method: str, path: str, body: object = None) -> list[tuple[int, dict[str, Any]]]:
    """What globex is told of acme's response, and of one that there is not."""
    made = scene.create()
    told = []
    before = scene.asked()
    for response_id in (made.id, UNKNOWN):
        asked = body if body is None else json.loads(json.dumps(body).replace("ID", response_id))
        status, answer, _ = scene.ask(method, path.replace("ID", response_id), asked, tenant="globex")
        told.append((status, json.loads(answer.decode().replace(response_id, "ID"))))
    assert scene.asked() == before  # no server was asked
    return told


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("GET", f"{RESPONSES}/ID", None, "response_id"),
        ("POST", f"{RESPONSES}/ID/cancel", None, "response_id"),
        ("POST", RESPONSES, ASK | {"previous_response_id": "ID"}, "previous_response_id"),
        ("POST", RESPONSES, ASK | {"previous_response_id": "ID", "stream": True}, "previous_response_id"),
    ],
)
def test_another_tenants_is_as_unknown_as_none(
    scene: Scene, method: str, path: str, body: object, param: str
) -> None:
    theirs, nobodys = foreign(scene, method, path, body)
    assert theirs == nobodys
    status, answer = theirs
    assert status == 404
    assert answer["error"] == {
        "message": "Response with id 'ID' not found.",
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


def test_what_was_refused_is_a_line(scene: Scene) -> None:
    def refused() -> list[dict[str, Any]]:
        lines = scene.gateway.lines("refused")
        return [line for line in lines if line["operation"] == "responses.retrieve"]

    before = len(refused())
    scene.ask("GET", f"{RESPONSES}/{UNKNOWN}")
    lines = eventually(lambda: (found := refused()) and len(found) > before and found)
    assert {(line["status"], line["reason"], line["tenant"]) for line in lines} <= {
        (404, "ResponseNotFound", "acme"), (404, "ResponseNotFound", "globex"),
    }  # fmt: skip


@pytest.mark.parametrize("store", [False, None])
def test_what_is_not_to_be_kept_is_not_there(scene: Scene, store: bool | None) -> None:
    made = scene.create(store=store)
    assert scene.ask("GET", f"{RESPONSES}/{made.id}")[0] == 404
    assert scene.ask("POST", RESPONSES, ASK | {"previous_response_id": made.id})[0] == 404


def test_what_its_server_has_forgotten_is_that_servers_404(tmp_path: pathlib.Path) -> None:
    with (
        simulator.running(
            Settings(instance_type="t", model="m1", time_scale=0.01, responses_max=1)
        ) as server,
        running(tmp_path, [{"name": "a", "url": server.url, "model": "m1"}]) as gateway,
    ):
        scene = Scene(gateway, {"a": server})
        forgotten, kept = scene.create(), scene.create()
        assert scene.ask("GET", f"{RESPONSES}/{kept.id}")[0] == 200
        before = scene.asked()
        for method, path, body in (
            ("GET", f"{RESPONSES}/{forgotten.id}", None),
            ("POST", f"{RESPONSES}/{forgotten.id}/cancel", None),
            ("POST", RESPONSES, ASK | {"previous_response_id": forgotten.id}),
        ):
            status, answer, headers = scene.ask(method, path, body)
            assert (status, json.loads(answer)["error"]["code"]) == (404, 404)
            assert scene.record(headers["x-weighbridge-call-id"])["outcome"] == "refused"
        assert scene.asked() == before + 3


def test_one_that_is_whole_cannot_be_cancelled(scene: Scene) -> None:
    made = scene.create()
    for body in (None, {}):
        status, answer, headers = scene.ask("POST", f"{RESPONSES}/{made.id}/cancel", body)
        assert (status, json.loads(answer)["error"]["message"]) == (
            400,
            "Cannot cancel a synchronous response.",
        )
        record = scene.record(headers["x-weighbridge-call-id"])
        assert (record["operation"], record["outcome"], record["backend"]) == (
            "responses.cancel", "refused", made.backend,
        )  # fmt: skip
        assert (record["usage"]["source"], record["cost_pusd"]) == ("unknown", 0)


def test_what_nobody_could_count_is_not_begun(scene: Scene) -> None:
    before = scene.asked()
    for stream in (False, True):
        status, body, _ = scene.ask("POST", RESPONSES, ASK | {"background": True, "stream": stream})
        assert (status, json.loads(body)["error"]["param"]) == (400, "background")
    made = scene.create()
    status, body, _ = scene.ask("GET", f"{RESPONSES}/{made.id}?stream=true&starting_after=2")
    assert (status, json.loads(body)["error"]["param"]) == (400, "stream")
    assert scene.asked() == before + 1


def test_other_methods_and_pages_are_not_there(scene: Scene) -> None:
    made = scene.create()
    for method, path, status, allow in (
        ("DELETE", made.id, 405, "GET, HEAD"),
        ("GET", f"{made.id}/cancel", 405, "POST"),
        ("GET", f"{made.id}/input_items", 404, None),
        ("GET", "", 404, None),
    ):
        told, body, headers = scene.ask(method, f"{RESPONSES}/{path}")
        assert (told, headers.get("allow")) == (status, allow)
        assert json.loads(body)["error"]["message"]
    status, body, headers = scene.ask("HEAD", f"{RESPONSES}/{made.id}")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(made.body)))


def test_without_a_key_nothing_is_told(scene: Scene) -> None:
    made = scene.create()
    status, body = scene.gateway.get(f"{RESPONSES}/{made.id}")
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")


def test_an_id_outlives_the_gateway_and_not_its_server(tmp_path: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(simulator.running(SETTINGS))
        backends = [{"name": "a", "url": server.url, "model": "m1"}]
        gateway = stack.enter_context(running(tmp_path, backends))
        scene = Scene(gateway, {"a": server})
        made = scene.create()
        gateway.stop()
        gateway.restart()
        gateway.wait_ready()
        assert scene.ask("GET", f"{RESPONSES}/{made.id}")[:2] == (200, made.body)
        server.process.kill()

        def told() -> int:
            return scene.ask("GET", f"{RESPONSES}/{made.id}")[0]

        assert told() in (502, 503)
        eventually(lambda: told() == 503)  # it is known to be down, and nobody else has it
