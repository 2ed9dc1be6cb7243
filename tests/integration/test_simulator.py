"""The simulator over real sockets: what clients see, what its log says, and that the two agree."""

import base64
import collections.abc
import contextlib
import hashlib
import http.client
import json
import signal
import subprocess
import sys
import time

import msgspec
import openai
import pytest

from backends.simulator.http import BODY_BYTES_MAX
from backends.simulator.settings import Settings
from tests.support import simulator
from tests.support.simwire import (
    CHAT,
    USER,
    WAIT_S_MAX,
    answer,
    connection,
    eventually,
    is_whole,
    last_entry,
    read_to_end,
    read_until,
    wire,
)

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
FAST = Settings(instance_type="inf2.48xlarge", model=MODEL, time_scale=0.01)
ONE_SLOT = msgspec.structs.replace(FAST, slots=1)


@pytest.fixture(scope="module")
def server() -> collections.abc.Iterator[simulator.Running]:
    with simulator.running(FAST) as running:
        yield running


@pytest.fixture(scope="module")
def one_slot() -> collections.abc.Iterator[simulator.Running]:
    with simulator.running(ONE_SLOT) as running:
        yield running


class TestTheOpenAiSdk:
    @pytest.fixture
    def client(self, server: simulator.Running) -> collections.abc.Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            yield client

    def test_chat(self, client: openai.OpenAI, server: simulator.Running) -> None:
        reply = client.chat.completions.create(model=MODEL, messages=[USER], max_tokens=5)
        assert reply.choices[0].finish_reason == "length"
        assert reply.choices[0].message.content
        assert reply.usage is not None
        entry = last_entry(server)
        assert reply.usage.completion_tokens == entry["completion_tokens"] == 5
        assert reply.usage.prompt_tokens == entry["prompt_tokens"]

    def test_chat_stream(self, client: openai.OpenAI, server: simulator.Running) -> None:
        sized = client.chat.completions.create(model=MODEL, messages=[USER], n=2)
        with client.chat.completions.create(
            model=MODEL, messages=[USER], n=2, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [
            choice.message.content for choice in sized.choices
        ]  # the same prompt, the same answer
        assert texts[0] != texts[1]
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens == last_entry(server)["completion_tokens"]
        finish = [
            choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
        ]
        assert finish == ["stop", "stop"]

    def test_completions(self, client: openai.OpenAI) -> None:
        reply = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=3)
        assert [choice.index for choice in reply.choices] == [0, 1]
        with client.completions.create(model=MODEL, prompt="one", max_tokens=3, stream=True) as stream:
            assert "".join(chunk.choices[0].text for chunk in stream) == reply.choices[0].text

    def test_models(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == [MODEL]

    def test_errors(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="no-such-model", messages=[USER])
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=MODEL, prompt="word " * 5_000)


class TestLog:
    @pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "n": 3}])
    def test_it_says_what_the_client_got(self, server: simulator.Running, fields: dict) -> None:
        request = wire(head="x-request-id: ticket-7\r\n", **fields)
        with connection(server) as sock:
            sock.sendall(request)
            got = answer(sock)
        entry = last_entry(server)
        assert entry["request_id"] == "ticket-7"
        assert b'"chatcmpl-ticket-7"' in got.body
        assert entry["body_sha256"] == hashlib.sha256(request.partition(b"\r\n\r\n")[2]).hexdigest()
        assert entry["sent_sha256"] == hashlib.sha256(got.body).hexdigest()
        assert base64.b64decode(entry["raw"]) == got.body
        assert (entry["bytes_sent"], entry["status"], entry["outcome"]) == (len(got.body), 200, "completed")
        assert entry["events"] == got.body.count(b"data: ")
        assert entry["completion_tokens"] == entry["completion_tokens_sent"] == 4 * fields.get("n", 1)
        assert entry["received_ns"] <= entry["ended_ns"]

    def test_refusals_are_in_it(self, server: simulator.Running) -> None:
        for body, status in ((b"{", 400), (b'{"model":"x","messages":[]}', 404)):
            with connection(server) as sock:
                sock.sendall(wire(body=body))
                assert answer(sock).status == status
            assert (last_entry(server)["status"], last_entry(server)["outcome"]) == (status, "refused")

    def test_counters_are_its_sums(self) -> None:
        with simulator.running(FAST) as server:
            for fields in (
                {},
                {"stream": True},
                {"n": 2},
                {"messages": [USER] * 9},
                {"messages": [USER] * 9},
            ):
                with connection(server) as sock:
                    sock.sendall(wire(**fields))
                    answer(sock)
            entries = server.log()
            assert sum(entry["completion_tokens"] for entry in entries) == server.value(
                "vllm:generation_tokens_total"
            )
            prompts = [
                entry["prompt_tokens"] * (2 if entry["n"] == 3 else 1) for entry in entries
            ]  # n = 2: twice
            assert sum(prompts) == server.value("vllm:prompt_tokens_total")
            assert entries[-1]["cached_tokens"] > 0
            assert server.value("vllm:request_success_total") == 6

    def test_since_and_delete(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(wire())
            answer(sock)
        last = server.log()[-1]["n"]
        assert [entry["n"] for entry in server.log(last)] == [last]
        with connection(server) as sock:
            sock.sendall(wire("/_sim/log?since=x", b"", method="GET"))
            assert answer(sock).status == 400
            sock.sendall(wire("/_sim/log", b"", method="DELETE"))
            read_until(sock, b" 204 ")
        assert server.log() == []


class TestSeats:
    def test_beyond_the_slots_calls_wait_in_order(self, one_slot: simulator.Running) -> None:
        long = wire(stream=True, max_tokens=200, ignore_eos=True)
        with connection(one_slot) as first, connection(one_slot) as second:
            first.sendall(long)
            read_until(first, b'"content":" ')
            second.sendall(wire(stream=True))
            head = read_until(second, b"\r\n\r\n")  # a stream's head does not wait for a seat
            assert b"data:" not in head
            assert one_slot.value("vllm:num_requests_running") == 1
            assert one_slot.value("vllm:num_requests_waiting") == 1
            read_until(first, b"[DONE]")
            read_until(second, b"[DONE]")
        assert one_slot.value("vllm:num_requests_running") == 0

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_client_that_leaves_frees_its_seat_at_once(
        self, one_slot: simulator.Running, stream: bool
    ) -> None:
        before = one_slot.value("vllm:generation_tokens_total")
        with connection(one_slot) as leaver:
            leaver.sendall(wire(stream=stream, max_tokens=4_000, ignore_eos=True))
            eventually(lambda: one_slot.value("vllm:generation_tokens_total") > before + 3)
        entry = last_entry(one_slot)
        assert entry["outcome"] == "aborted"
        assert 3 < entry["completion_tokens"] < 4_000
        assert one_slot.value("vllm:num_requests_running") == 0
        assert one_slot.value("vllm:generation_tokens_total") - before == entry["completion_tokens"]
        with connection(one_slot) as sock:
            sock.sendall(wire())
            assert answer(sock).status == 200

    def test_a_client_that_leaves_the_queue_gets_nothing(self, one_slot: simulator.Running) -> None:
        with connection(one_slot) as first:
            first.sendall(wire(stream=True, max_tokens=4_000, ignore_eos=True))
            read_until(first, b'"content":" ')
            with connection(one_slot) as second:
                second.sendall(wire())
                eventually(lambda: one_slot.value("vllm:num_requests_waiting") == 1)
            eventually(lambda: one_slot.value("vllm:num_requests_waiting") == 0)
        assert last_entry(one_slot)["completion_tokens"] == 0


FAULTED = [
    # kind, after_events, stream, tokens sent, marks that must be there, status
    ("die", None, True, 0, b"", None),
    ("die", None, False, 0, b"", None),
    ("die", 0, True, 0, b"HTTP/1.1 200", 200),
    ("die", 3, True, 2, b'"role":"assistant"', 200),
    ("die", 0, False, 0, b'"object":"chat.completion"', 200),  # half of the body
    ("reset", None, True, 0, b"", None),
    ("reset", 2, True, 1, b'"role":"assistant"', 200),
    ("error_500", None, True, 0, b"HTTP/1.1 500", 500),
    ("error_500", None, False, 0, b"HTTP/1.1 500", 500),
    ("error_500", 1, False, 0, b"HTTP/1.1 500", 500),
    ("error_500", 2, True, 1, b'data: {"error":{"message":', 200),
    ("garbage", None, True, 0, b"data: \x89\x00\xfe<html>", 200),
    ("garbage", 2, True, 1, b"data: \x89\x00\xfe<html>", 200),
    ("garbage", None, False, 0, b"\r\n\r\n\x89\x00\xfe<html>", 200),
    ("garbage", 0, False, 0, b'"object":"chat.completion"', 200),
]
WHOLE = ("error_500", "garbage")  # the answer ends as HTTP wants it


class TestFaults:
    @pytest.mark.parametrize(("kind", "after", "stream", "tokens", "mark", "status"), FAULTED)
    def test_what_the_client_sees(
        self,
        server: simulator.Running,
        kind: str,
        after: int | None,
        stream: bool,
        tokens: int,
        mark: bytes,
        status: int | None,
    ) -> None:
        server.arm(kind, **({} if after is None else {"after_events": after}))
        with connection(server) as sock:
            sock.sendall(wire(stream=stream, max_tokens=9, head="connection: close\r\n"))
            raw = read_to_end(sock)
        entry = last_entry(server)
        assert entry["outcome"] == f"faulted:{kind}"
        assert (entry["status"], entry["fault"], entry["completion_tokens_sent"]) == (status, kind, tokens)
        assert mark in raw
        assert bool(mark) == bool(raw)
        assert is_whole(raw) == (kind in WHOLE)
        if kind == "error_500" and status == 200:
            assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert server.value("vllm:num_requests_running") == 0
        with connection(server) as sock:  # the next call goes well
            sock.sendall(wire())
            assert answer(sock).status == 200

    def test_a_reset_is_one(self, server: simulator.Running) -> None:
        server.arm("reset")
        with connection(server) as sock:
            sock.sendall(wire())
            with pytest.raises(ConnectionResetError):
                sock.recv(1)

    @pytest.mark.parametrize(
        ("after", "stream", "mark"), [({}, True, b""), ({"after_events": 3}, True, b'"content":" ')]
    )
    def test_a_stall_keeps_its_seat_until_the_client_leaves(
        self, one_slot: simulator.Running, after: dict[str, int], stream: bool, mark: bytes
    ) -> None:
        one_slot.arm("stall", **after)
        with connection(one_slot) as sock:
            sock.sendall(wire(stream=stream, max_tokens=9))
            eventually(lambda: last_entry(one_slot, open_too=True)["completion_tokens"] > 0)
            if mark:
                read_until(sock, mark)
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            assert one_slot.value("vllm:num_requests_running") == 1
        assert last_entry(one_slot)["outcome"] == "faulted:stall"
        assert one_slot.value("vllm:num_requests_running") == 0

    def test_a_stalled_sized_answer_stops_half_way(self, server: simulator.Running) -> None:
        server.arm("stall", after_events=0)
        with connection(server) as sock:
            sock.sendall(wire())
            raw = read_until(sock, b"chat.completion")
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            assert not raw.endswith(b"}")
        assert last_entry(server)["outcome"] == "faulted:stall"

    def test_a_slow_head_is_late_and_whole(self, server: simulator.Running) -> None:
        server.arm("slow_head", delay_ms=300)
        with connection(server) as sock:
            started = time.monotonic()
            sock.sendall(wire(stream=True))
            read_until(sock, b"HTTP/1.1 200")
            assert time.monotonic() - started >= 0.29  # the loop counts in milliseconds
            read_until(sock, b"[DONE]")
        assert (last_entry(server)["outcome"], last_entry(server)["fault"]) == ("completed", "slow_head")

    def test_who_leaves_before_a_slow_head_is_aborted(self, server: simulator.Running) -> None:
        server.arm("slow_head", delay_ms=60_000)
        with connection(server) as sock:
            sock.sendall(wire())
            eventually(lambda: last_entry(server, open_too=True)["outcome"] == "open")
        assert last_entry(server)["outcome"] == "aborted"

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("status", [429, 503])
    @pytest.mark.parametrize("after_s", [None, 0, 7])
    def test_a_busy_one_answers_at_once_and_generates_nothing(
        self, server: simulator.Running, status: int, after_s: int | None, stream: bool
    ) -> None:
        server.arm(f"busy_{status}", **({} if after_s is None else {"retry_after_s": after_s}))
        before = server.value("vllm:prompt_tokens_total")
        with connection(server) as sock:
            sock.sendall(wire(stream=stream))
            busy = answer(sock)
            assert (busy.status, dict(busy.headers).get("retry-after")) == (
                status,
                None if after_s is None else str(after_s),
            )
            assert json.loads(busy.body)["error"]["code"] == status
            assert last_entry(server)["outcome"] == f"faulted:busy_{status}"
            assert server.value("vllm:prompt_tokens_total") == before
            sock.sendall(wire(stream=stream))
            assert answer(sock).status == 200

    def test_refused_calls_use_up_no_fault(self, server: simulator.Running) -> None:
        server.arm("die", times=2)
        with connection(server) as sock:
            sock.sendall(wire(model="no-such-model"))
            assert answer(sock).status == 404
        for raw in (b"", b""):
            with connection(server) as sock:
                sock.sendall(wire())
                assert read_to_end(sock) == raw
        with connection(server) as sock:
            sock.sendall(wire())
            assert answer(sock).status == 200

    def test_faults_can_be_taken_back_and_misspelt_ones_are_refused(self, server: simulator.Running) -> None:
        server.arm("die", times=100)
        with connection(server) as sock:
            sock.sendall(wire("/_sim/fault", b"", method="DELETE"))
            read_until(sock, b" 204 ")
            sock.sendall(wire("/_sim/fault", b'{"kind":"explode"}'))
            assert answer(sock).status == 400
            sock.sendall(wire())
            assert answer(sock).status == 200


class TestHttp:
    def test_connections_are_kept(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            for stream in (False, True, False):
                sock.sendall(wire(stream=stream))
                assert answer(sock).status == 200

    def test_an_idle_connection_is_closed_after_5_s(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(wire())
            answer(sock)
            started = time.monotonic()
            assert sock.recv(1) == b""
            assert 4.5 < time.monotonic() - started < 8

    def test_pipelined_requests_are_answered_in_order(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(
                b"".join(wire(head=f"x-request-id: p-{n}\r\n", stream=n % 2 == 0) for n in range(5))
                + wire("/version", b"", "connection: close\r\n", "GET")
            )
            raw = read_to_end(sock)
        positions = [raw.index(f"chatcmpl-p-{n}".encode()) for n in range(5)]
        assert positions == sorted(positions)
        assert raw.endswith(b'{"version":"0.32.0"}')

    def test_http_1_0_and_connection_close(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(wire(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
            raw = read_to_end(sock)
        assert b"transfer-encoding" not in raw
        assert raw.endswith(b"data: [DONE]\n\n")
        with connection(server) as sock:
            sock.sendall(wire(head="connection: close\r\n"))
            assert b"\r\nconnection: close\r\n" in read_to_end(sock)

    def test_a_large_body_may_ask_to_be_waited_for(self, server: simulator.Running) -> None:
        request = wire(head="expect: 100-continue\r\n")
        head, _, body = request.partition(b"\r\n\r\n")
        with connection(server) as sock:
            sock.sendall(head + b"\r\n\r\n")
            assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            assert answer(sock).status == 200

    def test_what_is_not_http_or_too_large_is_refused(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(b"\x16\x03\x01 not http\r\n\r\n")
            assert read_to_end(sock).startswith(b"HTTP/1.1 400 ")
        with connection(server) as sock:
            head, _, _ = wire().partition(b"content-length")
            sock.sendall(head + f"content-length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode())
            with contextlib.suppress(ConnectionError):
                for _ in range(BODY_BYTES_MAX // 65_536 + 1):
                    sock.sendall(b" " * 65_536)
            assert b" 413 " in read_to_end(sock) or last_entry(server)["outcome"] != "open"

    def test_an_upgrade_is_not_taken(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
            assert read_to_end(sock).endswith(b'{"version":"0.32.0"}')

    def test_other_content_types_are_refused(self, server: simulator.Running) -> None:
        with connection(server) as sock:
            sock.sendall(wire().replace(b"application/json", b"text/plain"))
            assert answer(sock).status == 400

    def test_the_standard_library_reads_it(self, server: simulator.Running) -> None:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S_MAX)
        with contextlib.closing(client):
            body = json.dumps({"messages": [USER], "stream": True, "max_tokens": 3})
            client.request("POST", CHAT, body, {"content-type": "application/json"})
            response = client.getresponse()
            assert response.getheader("x-weighbridge-simulated") == "1"
            assert response.read().endswith(b"data: [DONE]\n\n")
            client.request("POST", "/ping")
            assert client.getresponse().status == 200


class TestProcess:
    def test_the_first_line_says_what_it_is(self, server: simulator.Running) -> None:
        assert server.first_line.startswith(
            "simulated: inf2.48xlarge serving llama-3.1-8b with 96 slots at http://"
        )
        assert "timing: measured, Llama-3.1-8B on inf2.48xlarge" in server.first_line

    def test_assumed_timing_is_said_in_line_and_log(self) -> None:
        settings = Settings(instance_type="g6e.xlarge", model=MODEL, time_scale=0.01)
        with simulator.running(settings) as running:
            assert running.first_line.endswith("timing: assumed\n")

    def test_a_signal_ends_it_well_even_while_it_answers(self) -> None:
        with simulator.running(FAST) as server, connection(server) as sock:
            sock.sendall(wire(stream=True, max_tokens=4_000, ignore_eos=True))
            read_until(sock, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(WAIT_S_MAX) == 0

    def test_a_taken_port_is_one_line_and_exit_3(self, server: simulator.Running) -> None:
        program = (
            "import sys\nfrom backends.simulator.server import run\nfrom backends.simulator.settings import Settings\n"
            f"sys.exit(run(Settings(instance_type='inf2.48xlarge', model='m-8b'), {server.port}))"
        )
        second = subprocess.run(
            [sys.executable, "-c", program],
            cwd=simulator.ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == 3
        assert second.stderr == f"weighbridge: port {server.port} is taken\n"
        assert second.stdout == ""

    def test_measured_times_are_kept(self) -> None:
        """At a tenth of the table's times: 47.5 ms to the first token and 2.66 ms a token, alone on 96 slots."""
        settings = msgspec.structs.replace(FAST, time_scale=0.1)
        with simulator.running(settings) as server, connection(server) as sock:
            started = time.monotonic()
            sock.sendall(wire(stream=True, max_tokens=101, ignore_eos=True))
            read_until(sock, b"data: ")
            first_s = time.monotonic() - started
            read_until(sock, b"[DONE]")
            all_s = time.monotonic() - started
        assert 0.0475 <= first_s < 3
        assert 0.0475 + 100 * 0.002_659 * 0.99 <= all_s < 10
