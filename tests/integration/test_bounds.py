"""What happens at the bounds: slots, the line before them, the journal's size, a stop with calls under way."""

import asyncio
import contextlib
import json
import pathlib
import signal

import pytest

from tests.integration.test_faces import ASK, ASK_STREAM, CHAT, DONE, FINISH, HELLO, ROLE, USAGE_EVENT
from tests.support import mutants
from tests.support.gateway import eventually, running, running_async
from tests.support.rawbackend import Asked, Scripted, backend, chunked, sized
from tests.support.rawclient import Got, RawClient

pytestmark = pytest.mark.integration

ASK_M1 = ASK | {"model": "m1"}
CARD = {"family": "inf2", "prompt": "1", "completion": "2", "date": "2026-11-01", "source": "test"}


class Holding:
    """A backend that answers when it is told to, and counts how many calls it has at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.go = asyncio.Event()

    async def answer(
        self, _asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1
        writer.write(sized(CHAT))


async def until(check) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


async def ask(port: int, key: str, body: dict) -> Got:
    client = RawClient(port, key)
    try:
        return await client.post("/v1/chat/completions", body)
    finally:
        await client.close()


def config(port: int, **more: object) -> list[dict]:
    return [
        {"name": "a", "url": f"http://127.0.0.1:{port}", "model": "m1", "instance_type": "inf2.xlarge"} | more
    ]


def test_the_workers_share_a_backends_slots(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        holding = Holding()
        async with backend(holding.answer) as port, running_async(
            tmp_path, config(port, slots=3), rate_cards=[CARD], workers=2
        ) as gateway:  # fmt: skip
            key = gateway.keys["acme"]
            calls = [asyncio.create_task(ask(gateway.port, key, ASK_M1)) for _ in range(40)]
            await until(lambda: holding.now == 3)
            holding.go.set()
            assert {got.status for got in await asyncio.gather(*calls)} == {200}
            assert holding.most == 3
            writers = {line["writer"] for line in gateway.lines("start")}
            by_writer = {record["call_id"].partition("-")[0] for record in gateway.lines("call")}
            assert by_writer == writers  # both workers served

    asyncio.run(play())


def test_the_line_is_first_come_bounded_and_does_not_wait_for_ever(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        holding = Holding()
        async with backend(holding.answer) as port, running_async(
            tmp_path, config(port, slots=1), rate_cards=[CARD]
        ) as gateway:  # fmt: skip
            key = gateway.keys["acme"]
            first = asyncio.create_task(ask(gateway.port, key, ASK_M1))
            await until(lambda: holding.now == 1)
            line = [asyncio.create_task(ask(gateway.port, key, ASK_M1)) for _ in range(100)]
            await until(lambda: len(gateway.lines("admitted")) == 101)
            refused = await ask(gateway.port, key, ASK_M1)
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "no_backend")
            assert refused.headers["retry-after"] == "1"
            await until(lambda: len(gateway.lines("refused")) == 1)
            shed = await asyncio.gather(*line)  # nobody leaves the slot for ten seconds
            assert {(got.status, json.loads(got.body)["error"]["code"]) for got in shed} == {
                (503, "no_backend")
            }
            holding.go.set()
            assert (await first).status == 200
            records = gateway.lines("call")
            outcomes = [record["outcome"] for record in records]
            assert (outcomes.count("shed"), outcomes.count("completed")) == (100, 1)
            waits = [record["queue_wait_ns"] for record in records if record["outcome"] == "shed"]
            assert min(waits) >= 10_000_000_000
            assert {record["cost_pusd"] for record in records if record["outcome"] == "shed"} == {0}

    asyncio.run(play())


def test_a_full_journal_refuses_calls_and_keeps_room_for_those_under_way(tmp_path: pathlib.Path) -> None:
    one = Scripted(sized(CHAT))
    limits = {"bytes_max": 1024 * 1024, "segment_bytes_max": 1024 * 1024}
    try:
        with running(tmp_path, config(one.port, slots=8), rate_cards=[CARD], journal=limits) as gateway:

            def full() -> bool:
                answer = gateway.post("/v1/chat/completions", ASK_M1)
                code = json.loads(answer.read()).get("error", {}).get("code")
                assert (answer.status, code) in {(200, None), (503, "journal_full")}
                return code == "journal_full"

            eventually(full, within_s=60, every_s=0)
            admitted = {line["call_id"] for line in gateway.lines("admitted")}
            assert {line["call_id"] for line in gateway.lines("call")} == admitted
            files = (gateway.state_dir / "journal").rglob("*")
            size = sum(path.stat().st_size for path in files if path.name != "ballast")
            assert 900_000 < size < limits["bytes_max"] + 100_000  # directories count on some file systems
            status, body = gateway.get("/readyz")
            assert (status, json.loads(body)["reasons"]) == (503, ["the journal is full"])
    finally:
        one.stop()


def test_a_stop_lets_a_stream_end_and_closes_the_journal(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        go = asyncio.Event()

        async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            raw = chunked(ROLE, HELLO, FINISH, USAGE_EVENT, DONE)
            middle = raw.index(FINISH)
            writer.write(raw[:middle])
            await go.wait()
            writer.write(raw[middle:])

        async with backend(answer) as port, running_async(
            tmp_path, config(port, slots=8), rate_cards=[CARD]
        ) as gateway:  # fmt: skip
            stream = asyncio.create_task(
                ask(gateway.port, gateway.keys["acme"], ASK_STREAM | {"model": "m1"})
            )
            await until(lambda: gateway.lines("admitted"))
            gateway.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in gateway.log.read_text())
            go.set()
            got = await stream
            assert (got.body, got.complete) == (ROLE + HELLO + FINISH + DONE, True)
            assert await asyncio.to_thread(gateway.process.wait, 60) == 0
            assert [line["outcome"] for line in gateway.lines("call")] == ["completed"]
            assert gateway.lines()[-1]["kind"] == "stop"
            assert gateway.lines()[-1]["reason"] == "shutdown"

    asyncio.run(play())


def test_a_stop_ends_answers_that_do_not_end_and_their_clients_are_told(tmp_path: pathlib.Path) -> None:
    """Their records say that the gateway failed them, not that their clients went."""

    async def play() -> None:
        begun = asyncio.Event()

        async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if json.loads(asked.body).get("stream"):
                raw = chunked(ROLE, HELLO, FINISH)
                writer.write(raw[: raw.index(FINISH)])
                begun.set()
            await reader.read()  # until the gateway leaves

        async with backend(answer) as port, running_async(
            tmp_path, config(port, slots=8), rate_cards=[CARD], drain_s=0.5
        ) as gateway:  # fmt: skip
            key = gateway.keys["acme"]
            stream = asyncio.create_task(ask(gateway.port, key, ASK_STREAM | {"model": "m1"}))
            sized_call = asyncio.create_task(ask(gateway.port, key, ASK_M1))
            await asyncio.wait_for(begun.wait(), 20)
            await until(lambda: len(gateway.lines("admitted")) == 2)
            gateway.process.send_signal(signal.SIGTERM)
            got = await stream
            assert got.body.startswith(ROLE + HELLO)
            assert json.loads(got.body.removeprefix(ROLE + HELLO).strip()[5:])["error"]["code"] == "shutdown"
            refused = await sized_call
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "shutdown")
            assert await asyncio.to_thread(gateway.process.wait, 60) == 0
            ended = [(line["outcome"], line["error_code"]) for line in gateway.lines("call")]
            assert ended == [("backend_failed", "shutdown")] * 2
            said = gateway.log.read_text()
            assert "attempt cut by the gateway" in said
            assert "attempt failed" not in said
            assert gateway.lines()[-1]["kind"] == "stop"

    asyncio.run(play())


def test_a_disk_that_fails_ends_calls_at_once_and_they_are_lost_not_doubled(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        begun, full = asyncio.Event(), tmp_path / "full"

        async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if json.loads(asked.body).get("stream"):
                raw = chunked(ROLE, HELLO, FINISH)
                writer.write(raw[: raw.index(FINISH)])
                begun.set()
                await reader.read()  # until the gateway leaves
            else:
                writer.write(sized(CHAT))

        env = mutants.environment("disk_broken") | {"KILL_TEST_BROKEN": str(full)}
        async with backend(answer) as port, running_async(
            tmp_path, config(port, slots=8), rate_cards=[CARD], env=env
        ) as gateway:  # fmt: skip
            key = gateway.keys["acme"]
            stream = asyncio.create_task(ask(gateway.port, key, ASK_STREAM | {"model": "m1"}))
            await asyncio.wait_for(begun.wait(), 20)
            full.touch()
            refused = await ask(gateway.port, key, ASK_M1)
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "journal_full")
            async with asyncio.timeout(10):  # much less than the time that a stop would give it
                got = await stream
            error = json.loads(got.body.rpartition(b"data: ")[2])["error"]
            assert (got.complete, error["code"]) == (True, "journal_full")
            full.unlink()
            again = None
            async with asyncio.timeout(20):
                while again is None or again.status != 200:
                    await asyncio.sleep(0.05)
                    # One that the ending process has just accepted is cut off.
                    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                        again = await ask(gateway.port, key, ASK_M1)
            await until(lambda: len(gateway.lines("call")) == 2)
            admitted = {line["call_id"] for line in gateway.lines("admitted")}
            outcomes = {line["call_id"]: line["outcome"] for line in gateway.lines("call")}
            assert outcomes.keys() == admitted
            assert sorted(outcomes.values()) == ["completed", "lost"]
            assert outcomes[again.headers["x-weighbridge-call-id"]] == "completed"

    asyncio.run(play())


def test_a_backend_without_a_price_is_announced_with_what_would_price_it(tmp_path: pathlib.Path) -> None:
    one = Scripted(sized(CHAT))
    try:
        with running(tmp_path, config(one.port, instance_type="trn2.48xlarge")) as gateway:
            gateway.post("/v1/chat/completions", ASK_M1).read()
            (record,) = eventually(lambda: gateway.lines("call"))
            assert (record["cost_pusd"], record["unpriced_reason"]) == (None, "instance_price_unknown")
            said = [line for line in gateway.log.read_text().splitlines() if "calls will be unpriced" in line]
            assert len(said) == 1
            assert "prices" in said[0]
            page = gateway.get("/metrics", gateway.keys["acme"])[1].decode()
            assert 'weighbridge_unpriced_calls_total{model="m1",reason="instance_price_unknown"} 1.0' in page
    finally:
        one.stop()
