"""Client libraries before a real vLLM, through the gateway: what each saw, the records, and vLLM's own counters.

The libraries, and what each can do, are those of tests/clients; `make clients` installs them. Tools are tested
there only: the arguments that a model of this size makes up are not always JSON.
"""

import collections.abc
import dataclasses
import secrets

import pytest

from tests.clients import environment, process
from tests.clients.libraries import LIBRARIES, Library
from tests.e2e import capture
from tests.e2e.engine import SLOTS
from tests.e2e.environment import MODEL
from tests.support.gateway import Gateway, eventually, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Application:
    """A library at work, the gateway before it, and the port of the vLLM behind that."""

    library: Library
    program: process.Program
    gateway: Gateway
    engine_port: int

    def ask(self, do: str, **order: object) -> tuple[dict, str]:
        """The library's view of a call, and the call's request id."""
        request_id = f"{self.library.name}-{secrets.token_hex(6)}"
        base = {"base_url": f"http://{HOST}:{self.gateway.port}/v1", "key": self.gateway.keys["acme"]}
        return self.program.ask(do, model=MODEL, request_id=request_id, **base, **order), request_id

    def call(self, request_id: str) -> dict:
        """The one record of a request."""

        def calls() -> list[dict]:
            return [line for line in self.gateway.lines("call") if line["request_id"] == request_id]

        (record,) = eventually(calls)
        return record

    def counters(self) -> tuple[int, int]:
        """Tokens of prompts and of answers that vLLM has counted, once it is at rest."""
        totals = capture.settled(HOST, self.engine_port)
        return int(totals["vllm:prompt_tokens_total"]), int(totals["vllm:generation_tokens_total"])


@pytest.fixture(scope="module")
def gateway(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> collections.abc.Iterator[Gateway]:
    if not environment.default().is_installed():
        pytest.skip("the client libraries are not installed; `make clients` installs them")
    backend = {
        "name": "vllm", "url": f"http://{HOST}:{engine_port}", "model": MODEL, "slots": SLOTS,
        "instance_type": "inf2.xlarge",
    }  # fmt: skip
    with running(tmp_path_factory.mktemp("clients"), [backend], model=MODEL) as made:
        yield made


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: library.name)
def application(
    request: pytest.FixtureRequest,
    gateway: Gateway,
    engine_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> collections.abc.Iterator[Application]:
    library: Library = request.param
    with process.running(library.program, tmp_path_factory.mktemp(library.name) / "stderr.log") as program:
        yield Application(library, program, gateway, engine_port)


@pytest.mark.parametrize("do", ["chat", "stream"])
def test_client_record_and_engine_count_the_same(application: Application, do: str) -> None:
    before = application.counters()
    view, request_id = application.ask(do, max_tokens=60)
    assert view["error"] is None, view["error"]
    assert view["text"]
    record = application.call(request_id)
    assert (record["outcome"], record["usage"]["source"]) == ("completed", "reported")
    seen = (view["prompt_tokens"], view["completion_tokens"])
    assert seen == (record["usage"]["prompt_tokens"], record["usage"]["completion_tokens"])
    after = application.counters()
    assert seen == (after[0] - before[0], after[1] - before[1])


def test_leaving_a_stream_stops_the_engine(application: Application) -> None:
    """What was sent is counted; the engine may have made a few tokens more, and is at rest soon."""
    extra = {"extra": {"ignore_eos": True}} if "extra" in application.library.can else {}
    before = application.counters()
    view, request_id = application.ask("stream", leave_after=3, max_tokens=1_500, **extra)
    assert view["error"] is None
    made = application.counters()[1] - before[1]
    record = application.call(request_id)
    assert (record["outcome"], record["usage"]["source"]) == ("client_gone", "counted")
    assert len(view["pieces"]) <= record["usage"]["completion_tokens"] <= made < 1_000
