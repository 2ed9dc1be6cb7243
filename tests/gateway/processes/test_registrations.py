"""What a gateway says of instances: once to each writer and hour, when it changes, and what is gone."""

import types
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backends import health
from backends.catalog import read_catalog
from backends.health import Health
from backends.identity import Probed
from backends.registry import Entry
from gateway.configuration import config_changes
from gateway.configuration.config import Config
from gateway.configuration.config_load import instances_csv
from gateway.processes import registrations
from gateway.processes.registrations import Registrations
from metering.record import Registration
from metering.units import NS_PER_HOUR

CATALOG = read_catalog(instances_csv())
INF2 = {
    "name": "inf2-a", "url": "http://127.0.0.1:1", "model": "m", "instance_type": "inf2.48xlarge",
    "instance_id": "i-1", "units": 8, "slots": 32, "region": "us-east-1", "account": "1", "az": "us-east-1a",
    "launched": "2026-11-01T06:00:00Z", "terminated": "2026-12-01", "purchase_option": "spot",
    "billed": "mon-fri 07:00-19:00",
}  # fmt: skip
BARE = {"name": "b", "url": "http://127.0.0.1:2", "model": "m"}


def config(*backends: dict[str, Any]) -> Config:
    tree = {
        "tenants": [{"name": "acme"}],
        "models": [
            {"name": "m1", "tiers": [{"backends": [backends[0]["name"]]}]},
            {"name": "m2", "tiers": [{"backends": [backends[0]["name"]]}]},
        ],
        "backends": list(backends),
    }
    return msgspec.convert(tree, Config)


class Book:
    """In the place of a recorder."""

    def __init__(self, writer: str = "w1") -> None:
        self.writer = writer
        self.dead: OSError | None = None
        self.full = False
        self.lines: list[Registration] = []

    def note(self, make: Callable[[int, str], Registration]) -> None:
        self.lines.append(make(len(self.lines) + 1, f"leaf {len(self.lines)}"))

    def states(self) -> list[tuple[str, str]]:
        return [(line.backend, line.state) for line in self.lines]


class Speaking:
    """Registrations with all that they look at."""

    def __init__(self, *backends: dict[str, Any]) -> None:
        made = config(*backends)
        self.entries = [Entry(backend, types.SimpleNamespace()) for backend in made.backends]  # type: ignore[arg-type]
        self.book = Book()
        self.now_ns = 500_000 * NS_PER_HOUR
        self.registrations = Registrations(
            made, CATALOG, self.entries, lambda: self.book, lambda: self.now_ns  # type: ignore[arg-type, return-value]
        )  # fmt: skip


def test_all_that_is_known_of_an_instance_is_said() -> None:
    speaking = Speaking(INF2, BARE)
    speaking.entries[0].health = health.passed(Health())
    speaking.entries[0].probed = Probed(simulated=True)
    speaking.registrations.look()
    first, second = speaking.book.lines
    assert first == Registration(
        account="1", at_ns=speaking.now_ns, az="us-east-1a", backend="inf2-a", billed="mon-fri 07:00-19:00",
        instance_id="i-1", instance_type="inf2.48xlarge", launched_ns=1_793_512_800_000_000_000, model="m1",
        prev="leaf 0", purchase_option="spot", region="us-east-1", seq=1, simulated=True, slots=32,
        source="config", state="ready", terminated_ns=1_796_083_200_000_000_000, units=8, units_total=24,
    )  # fmt: skip
    assert second == Registration(
        at_ns=speaking.now_ns, backend="b", instance_id="backend:b", prev="leaf 1", seq=2, source="config",
        state="starting",
    )  # fmt: skip


def test_it_is_said_again_when_it_changes_in_each_hour_and_to_a_new_writer() -> None:
    speaking = Speaking(INF2)
    (entry,) = speaking.entries
    speaking.registrations.look()
    speaking.registrations.look()
    assert speaking.book.states() == [("inf2-a", "starting")]
    entry.health = health.passed(entry.health)
    speaking.registrations.say([entry])
    speaking.registrations.look()
    entry.health = health.said_no(entry.health, "/health says 500")
    speaking.registrations.look()
    entry.health = health.said_no(entry.health, "/health says 503")  # another reason is no other state
    speaking.registrations.look()
    assert [state for _, state in speaking.book.states()] == ["starting", "ready", "down"]
    speaking.now_ns += NS_PER_HOUR
    speaking.registrations.look()
    assert [state for _, state in speaking.book.states()] == ["starting", "ready", "down", "down"]
    speaking.book = Book("w2")
    speaking.registrations.look()
    assert speaking.book.states() == [("inf2-a", "down")]


@pytest.mark.parametrize(("field", "value"), [("full", True), ("dead", OSError(5, "the disk is gone"))])
def test_what_cannot_be_written_is_said_once_it_can(field: str, value: object) -> None:
    speaking = Speaking(INF2)
    was = getattr(speaking.book, field)
    setattr(speaking.book, field, value)
    speaking.registrations.look()
    assert speaking.book.lines == []
    setattr(speaking.book, field, was)
    speaking.registrations.look()
    assert speaking.book.states() == [("inf2-a", "starting")]


def gone(before: Config, after: Config) -> list[tuple[str, str, str]]:
    words = registrations.gone(config_changes.remembered(before), after)
    return [(word.instance_id, word.backend, word.state) for word in words]


def test_a_backend_that_was_taken_out_or_moved_is_gone() -> None:
    both = config(INF2, BARE)
    assert gone(both, both) == []
    assert gone(both, config(INF2)) == [("backend:b", "b", "gone")]
    assert gone(config(INF2), both) == []
    assert gone(both, config(INF2 | {"instance_id": "i-2"}, BARE | {"instance_id": "i-1"})) == [
        ("i-1", "inf2-a", "gone"), ("backend:b", "b", "gone"),
    ]  # fmt: skip


def test_a_line_is_made_at_the_flush() -> None:
    (word,) = registrations.gone(config_changes.remembered(config(BARE)), config(INF2))
    line = registrations.line(word, lambda: 7)(3, "leaf")
    assert (line.at_ns, line.seq, line.prev) == (7, 3, "leaf")


def test_the_last_configuration_may_be_of_another_version() -> None:
    kept = msgspec.json.encode({"backends": [{"name": "x", "instance_id": "i-9", "new_key": 1}], "more": 1})
    (word,) = registrations.gone(kept, config(BARE))
    assert (word.instance_id, word.backend) == ("i-9", "x")
    assert registrations.gone(b"{}", config(BARE)) == []
    with pytest.raises(msgspec.MsgspecError):
        registrations.gone(b"[]", config(BARE))
