"""The direct driver's contract with uvicorn: what it was written for, and what becomes of it elsewhere."""

import hashlib
import inspect
import pathlib

import pytest
import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl

from gateway.calls import direct
from gateway.calls.direct import DirectProtocol, Door
from gateway.configuration.config import Bounds
from gateway.processes import worker

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
SOURCES = {
    httptools_impl.HttpToolsProtocol: "18fdf324b11bf160",
    flow_control.FlowControl: "126debcdaa894c83",
}
OVERRIDDEN = {
    "connection_lost", "connection_made", "data_received", "on_body", "on_header", "on_headers_complete",
    "on_message_begin", "on_message_complete", "on_response_complete", "pause_writing", "resume_writing",
    "shutdown",
}  # fmt: skip


def digest(of: type) -> str:
    return hashlib.sha256(inspect.getsource(of).encode()).hexdigest()[:16]


def test_this_is_the_uvicorn_that_the_driver_was_written_for() -> None:
    """After an upgrade: read what has changed, run both drivers' tests, then write the new ones here."""
    assert uvicorn.__version__ == direct.UVICORN
    assert f"uvicorn=={direct.UVICORN}" in (ROOT / "requirements.lock").read_text()
    assert {of: digest(of) for of in SOURCES} == SOURCES


def test_it_overrides_what_uvicorn_has() -> None:
    ours = {name for name in vars(DirectProtocol) if callable(vars(DirectProtocol)[name])}
    theirs = set(vars(httptools_impl.HttpToolsProtocol)) & ours - {"__init__"}
    assert theirs == OVERRIDDEN


def test_with_another_uvicorn_or_by_choice_the_plain_driver_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Door(Bounds()).paths
    assert not Door(Bounds(), direct=False).paths
    assert worker._protocol(Door(Bounds())) is not None
    monkeypatch.setattr(uvicorn, "__version__", "99.0")
    assert worker._protocol(Door(Bounds())) is None
