"""The real vLLM, the session held with it, and the lines that say what came out."""

import collections.abc

import pytest

from tests.e2e import environment
from tests.e2e import session as sessions
from tests.e2e.engine import engine
from tests.e2e.session import Session

FINDINGS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def engine_port(tmp_path_factory: pytest.TempPathFactory) -> collections.abc.Iterator[int]:
    """Port of a real vLLM that serves environment.MODEL."""
    cache = environment.default()
    if not cache.is_built():
        pytest.skip("the real vLLM is not installed; `make e2e` installs it")
    with engine(cache, tmp_path_factory.mktemp("engine") / "vllm.log") as port:
        yield port


@pytest.fixture(scope="session")
def session(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> Session:
    return sessions.hold(engine_port, tmp_path_factory.mktemp("session"))


@pytest.fixture
def finding(request: pytest.FixtureRequest) -> collections.abc.Callable[[str], None]:
    """Takes a line that the run's summary shows: a figure that was measured."""
    return request.config.stash.setdefault(FINDINGS, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(FINDINGS, []):
        terminalreporter.section("the real engine")
        for line in lines:
            terminalreporter.write_line(line)
