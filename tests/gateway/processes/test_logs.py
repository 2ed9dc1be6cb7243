"""Log lines: one JSON object per event, or text on a terminal."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from gateway.processes import logs
from gateway.processes.logs import log

logger = logging.getLogger("weighbridge.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_one_json_object() -> None:
    logs.set_up(out := io.StringIO(), worker=0)
    log(
        logger, logging.WARNING, "attempt failed", backend="inf2-a", attempts_left=2, error=ValueError("x\ny")
    )
    (line,) = lines(out)
    at = line.pop("at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(at))
    assert line == {
        "level": "warning",
        "event": "attempt failed",
        "logger": "weighbridge.test",
        "worker": 0,
        "backend": "inf2-a",
        "attempts_left": 2,
        "error": "x\ny",
    }


def test_below_the_level_nothing_is_written() -> None:
    logs.set_up(out := io.StringIO())
    log(logger, logging.DEBUG, "detail", n=1)
    assert out.getvalue() == ""


def test_other_libraries_lines_and_tracebacks_are_json_too() -> None:
    logs.set_up(out := io.StringIO())
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("Exception in %s", "ASGI")
    (line,) = lines(out)
    assert line["event"] == "Exception in ASGI"
    assert line["logger"] == "uvicorn.error"
    assert "RuntimeError: boom" in str(line["traceback"])


def test_a_terminal_gets_text() -> None:
    logs.set_up(out := Terminal(), worker=1)
    log(logger, logging.INFO, "backend state", backend="b", state="ready")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} info backend state worker=1 backend=b state=ready\n", out.getvalue()
    )
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logger.exception("fault")
    assert "\nRuntimeError: boom\n" in out.getvalue()


def test_on_a_terminal_a_fact_is_one_word_or_stands_in_quotes() -> None:
    logs.set_up(out := Terminal())
    log(logger, logging.ERROR, "store ended", code=-9, said='bad "x"\nbye', reason="no answer", none="")
    assert out.getvalue().endswith(
        r'error store ended code=-9 said="bad \"x\"\nbye" reason="no answer" none=""' + "\n"
    )


def test_set_up_again_replaces_the_stream() -> None:
    logs.set_up(first := io.StringIO())
    logs.set_up(second := io.StringIO())
    log(logger, logging.INFO, "once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("db password=abc", "db password=***"),
        ("passwd: abc, user x", "passwd: ***, user x"),
        ('{"api_key": "abc", "x": 1}', '{"api_key": "***", "x": 1}'),
        ("{'secret': 'abc'}", "{'secret': '***'}"),
        ("Bearer abc.def-1=", "Bearer ***"),
        ("key wb-0123456789abcdef", "key wb-***"),
        ("redis://user:abc@store:6379/0", "redis://***@store:6379/0"),
        ("the password is wrong; 3 keys, authorization failed", None),
        ("http://store:6379/a@b", None),
        ("the id of wb-1", None),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_what_looks_like_a_secret_is_masked(said: str, written: str | None, terminal: bool) -> None:
    logs.set_up(out := Terminal() if terminal else io.StringIO())
    try:
        raise RuntimeError(said)
    except RuntimeError as error:
        log(logger, logging.ERROR, "fault", error=error)
        logger.exception("again")
    if terminal:
        assert written is None or out.getvalue().count("***") == 2
        return
    first, again = lines(out)
    assert first["error"] == (written or said)
    assert str(again["traceback"]).endswith(f"RuntimeError: {written or said}")
