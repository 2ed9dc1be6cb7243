"""A disk that takes no write, and comes back: `journal.on_error`.

`stop`: the worker ends, its successor refuses calls until it can make a journal. `continue`: calls go on, what is not
written is shown and counted, and a fresh journal is begun as soon as one can be.
"""

import collections
import contextlib
import http.client
import json
import pathlib
from collections.abc import Iterator

import pytest

from metering.ledger import ledger_status
from tests.integration.test_disk_full import LONG_S, SLOTS, STREAMS, streams_under_way
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import mutants
from tests.support.gateway import eventually
from tests.support.stage import R, Stage, staged

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def staged_on_a_breaking_disk(directory: pathlib.Path, on_error: str) -> Iterator[tuple[Stage, pathlib.Path]]:
    """The disk is broken for as long as there is a file at the path that is given."""
    broken = directory / "broken"
    env = mutants.environment("disk_broken") | {"KILL_TEST_BROKEN": str(broken)}
    more = {"journal": {"on_error": on_error}, "timeouts": LONG_S, "slots": SLOTS}
    with staged(directory, env=env, **more) as stage:
        yield stage, broken


def ask(stage: Stage) -> tuple[int, str] | None:
    """Status and error code of a call's answer; None: no answer came."""
    try:
        answer = stage.gateway.post("/v1/chat/completions", R)
        body = json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        return None
    return answer.status, body.get("error", {}).get("code", "")


def logged(stage: Stage, event: str) -> list[dict]:
    lines = map(json.loads, stage.gateway.log.read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def writers_closed(stage: Stage) -> list[journal.Writer] | None:
    """All journals, once all but one are closed."""
    writers = journal.read(stage.gateway.state_dir / "journal")
    return writers if sum(not writer.closed for writer in writers) == 1 else None


def check_books(stage: Stage) -> list[journal.Writer]:
    """Chains, one record for each admission, and a ledger that equals them. returns: the journals."""
    writers = eventually(lambda: writers_closed(stage), within_s=40)
    assert [fault for writer in writers for fault in writer.faults] == []
    for writer in writers:
        records = collections.Counter(line["call_id"] for line in writer.of("call"))
        assert records == collections.Counter(line["call_id"] for line in writer.of("admitted"))

    def equal() -> bool:
        with Connection((stage.gateway.state_dir / "store" / "url").read_text().strip()) as store:
            return ledger.check(ledger.recompute(writers), ledger.read(store)) == []

    eventually(equal, within_s=20)
    return writers


def test_stop_refuses_calls_until_the_disk_is_back(tmp_path: pathlib.Path) -> None:
    with staged_on_a_breaking_disk(tmp_path, "stop") as (stage, broken):
        assert ask(stage) == (200, "")
        broken.touch()
        assert ask(stage) == (503, "journal_full")
        eventually(lambda: logged(stage, "journal cannot be made"), within_s=30)
        stage.b1.asked.clear()
        # Its successor takes no call and does not end: each one is told so, by the same process.
        assert {ask(stage) for _ in range(20)} == {(503, "journal_full")}
        assert json.loads(stage.gateway.get("/readyz")[1])["reasons"] == ["the journal cannot be written"]
        assert stage.b1.asked == []
        broken.unlink()
        eventually(lambda: ask(stage) == (200, ""), within_s=20)
        assert len(logged(stage, "worker ended")) == 1
        calls = [line for writer in check_books(stage) for line in writer.of("call")]
        assert [call["outcome"] for call in calls] == ["completed", "completed"]
        assert len({call["call_id"].partition("-")[0] for call in calls}) == 2


def test_continue_goes_on_and_shows_what_it_could_not_write(tmp_path: pathlib.Path) -> None:
    with staged_on_a_breaking_disk(tmp_path, "continue") as (stage, broken):
        with streams_under_way(stage) as (opened, held):
            broken.touch()
            assert [ask(stage) for _ in range(3)] == [(200, "")] * 3
            held.let_go()
            for one in opened:
                one.rest()
                assert (one.status, one.complete) == (200, True)
                assert one.body.endswith(b"data: [DONE]\n\n")
        shown = [line["line"] for line in logged(stage, "journal line not written")]
        kinds = collections.Counter(line["kind"] for line in shown)
        assert (kinds["call"], kinds["admitted"]) == (STREAMS + 3, 3)
        assert all(line["outcome"] == "completed" for line in shown if line["kind"] == "call")
        assert stage.gateway.alive("/readyz"), "calls are served"
        eventually(lambda: stage.count("weighbridge_journal_unwritten_total", kind="call") == STREAMS + 3)
        broken.unlink()
        eventually(lambda: logged(stage, "journal is written again"), within_s=30)
        assert ask(stage) == (200, "")
        assert logged(stage, "worker ended") == []
        calls = [line for writer in check_books(stage) for line in writer.of("call")]
        # Who was admitted before has a record of it, which says that more is not known; who came meanwhile has none.
        assert collections.Counter(call["outcome"] for call in calls) == {"lost": STREAMS, "completed": 1}
        assert {call["call_id"] for call in calls if call["outcome"] == "lost"} == {
            one.headers["x-weighbridge-call-id"] for one in opened
        }
        assert stage.count("weighbridge_journal_unwritten_total", kind="call") == STREAMS + 3
        assert stage.count("weighbridge_calls_total", outcome="lost") == STREAMS
        told = eventually(
            lambda: [one for one in stage.gateway.lines("event") if one["topic"] == "unwritten"]
        )
        assert sum(int(one["data"].get("call", 0)) for one in told) == STREAMS + 3
        pages = stage.gateway.state_dir / "pages"
        assert ledger_status.unwritten_of(pages)["call"] == STREAMS + 3


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_worker_that_starts_on_a_broken_disk_is_there(tmp_path: pathlib.Path, on_error: str) -> None:
    with staged_on_a_breaking_disk(tmp_path, on_error) as (stage, broken):
        assert stage.gateway.stop() == 0
        broken.touch()
        stage.gateway.restart()
        expected = {"stop": (503, "journal_full"), "continue": (200, "")}[on_error]
        eventually(lambda: ask(stage) == expected, within_s=30)
        broken.unlink()
        eventually(lambda: logged(stage, "journal is written again"), within_s=20)
        assert ask(stage) == (200, "")
        check_books(stage)
        if on_error == "continue":
            assert stage.count("weighbridge_journal_unwritten_total", kind="call") >= 1
