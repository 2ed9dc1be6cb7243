"""Boards: gauges of other processes in a scrape."""

import pathlib

import pytest

from metering.pages import board, gone, metrics
from metering.pages.board import DIFFERENCE, TIMESTAMP, UNMETERED, Gauge
from metering.pages.pages import PageError


def shown(tmp_path: pathlib.Path) -> str:
    gone.retire(tmp_path / "pages", tmp_path / "journal")
    text, _ = metrics.render(metrics.scrape(tmp_path / "pages"))
    return text.decode()


def test_a_scrape_shows_all_boards(tmp_path: pathlib.Path) -> None:
    pages = tmp_path / "pages"
    differences = [
        Gauge(name=DIFFERENCE, labels=("journal-ledger", "calls"), value=3),
        Gauge(name=DIFFERENCE, labels=("journal-metrics", "calls"), value=0),
    ]
    board.show(pages, "clerk", [Gauge(name=TIMESTAMP, value=1_795_863_600), *differences])
    board.show(pages, "other", [Gauge(name=UNMETERED, labels=("inf2-a",), value=7)])
    lines = [line for line in shown(tmp_path).splitlines() if not line.startswith("#")]
    assert lines[-4:] == [
        'weighbridge_backend_unmetered_tokens{backend="inf2-a"} 7.0',
        'weighbridge_control_difference{pair="journal-ledger",unit="calls"} 3.0',
        'weighbridge_control_difference{pair="journal-metrics",unit="calls"} 0.0',
        "weighbridge_control_timestamp_seconds 1.7958636e+09",
    ]


def test_a_board_is_replaced_whole(tmp_path: pathlib.Path) -> None:
    board.show(tmp_path, "clerk", [Gauge(name=UNMETERED, labels=("a",), value=1)])
    board.show(tmp_path, "clerk", [Gauge(name=UNMETERED, labels=("b",), value=2)])
    assert board.read(tmp_path) == [Gauge(name=UNMETERED, labels=("b",), value=2)]
    assert [path.name for path in tmp_path.iterdir()] == ["clerk.gauges"]


def test_what_another_version_shows_is_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "clerk.gauges").write_text(
        '{"gauges":[{"labels":[],"name":"weighbridge_of_tomorrow","value":1},'
        '{"labels":["a"],"name":"weighbridge_backend_unmetered_tokens","value":1,"more":2}]}'
    )
    assert board.read(tmp_path) == [Gauge(name=UNMETERED, labels=("a",), value=1)]


def test_a_damaged_board_fails_the_scrape(tmp_path: pathlib.Path) -> None:
    (tmp_path / "clerk.gauges").write_text('{"gauges":')
    with pytest.raises(PageError, match=r"clerk\.gauges"):
        board.read(tmp_path)
