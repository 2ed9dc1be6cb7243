"""/metrics as the operators' face gives it."""

import asyncio
import pathlib
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.ops import Ops
from metering.pages import gone
from metering.pages.pages import Page
from tests.support import lines

WRITER = "w" + "a" * 16


def get_metrics(pages_dir: pathlib.Path, before_scrape: Any = lambda: None) -> Response:
    absent = cast(Any, None)  # /metrics needs neither backends nor a recorder
    ops = Ops(services=absent, models=(), pages_dir=pages_dir, before_scrape=before_scrape, warnings=list)
    (route,) = [route for route in ops.routes(entrance=None) if route.path == "/metrics"]
    request = Request({"type": "http", "method": "GET", "path": "/metrics", "headers": []})
    return cast(Response, asyncio.run(route.endpoint(request)))


def test_metrics_are_the_pages_with_this_workers_gauges_as_of_now(tmp_path: pathlib.Path) -> None:
    gone.retire(tmp_path / "pages", tmp_path / "journal")
    page = Page(tmp_path / "pages", WRITER, on_stuck=lambda _: None)
    call = lines.call(1)
    page.fold(call, 1, lines.leaf_of(call))
    page.turn(1, lines.leaf_of(call))
    page.gauges.in_flight("b1", 4)
    answer = get_metrics(tmp_path / "pages", page.publish)
    page.close()
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'weighbridge_in_flight{backend="b1"} 4.0\n' in answer.body
    assert b'outcome="completed",tenant="acme"} 1.0\n' in answer.body


def test_metrics_are_unavailable_rather_than_too_small(tmp_path: pathlib.Path) -> None:
    """Without the gone page the counters of dead writers would be missing."""
    answer = get_metrics(tmp_path / "pages")
    assert (answer.status_code, answer.body) == (503, b"there is no gone page\n")
