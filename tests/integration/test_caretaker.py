"""Journals of dead writers into a real store, whatever happens to it."""

import json
import os
import pathlib
import random
import re
import signal
from collections.abc import Iterator

import pytest

from gateway.duties.caretaker import Caretaker
from metering.journal.journal import directories
from metering.ledger.embedded import Embedded
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection, RespError
from tests.support import lines, signing, writers
from tests.support.gateway import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[Embedded]:
    embedded = Embedded.start(tmp_path)
    yield embedded
    embedded.close()


@pytest.fixture
def caretaker(tmp_path: pathlib.Path, store: Embedded) -> Iterator[Caretaker]:
    """Of a state directory with three dead writers' journals, at work."""
    for seed in range(3):
        dead_writer(tmp_path, seed)
    one = Caretaker(tmp_path, store.url, signing.keys(tmp_path), tenants=["acme", "newcomer"], host="h1")
    one.tidy()
    one.start()
    yield one
    one.close(10)


def dead_writer(state_dir: pathlib.Path, seed: int) -> None:
    """A journal and a page of a writer that died with a call open."""
    worker = writers.Worker(state_dir, random.Random(seed))
    for tenant in ("acme", "globex"):
        worker.write(
            lambda seq, prev, tenant=tenant: lines.admitted(
                seq, prev, tenant=tenant, call_id=f"{worker.writer}-{seq}"
            ),
            lambda seq, prev, tenant=tenant: lines.call(
                seq, prev, tenant=tenant, call_id=f"{worker.writer}-{seq - 1}"
            ),
        )
    worker.write(lambda seq, prev: lines.admitted(seq, prev, tenant="acme", call_id=f"{worker.writer}-{seq}"))
    worker.kill()


def is_level(state_dir: pathlib.Path, store: Embedded) -> bool:
    """Does the store hold what the journals say, and is that something?"""
    want = ledger.recompute(journal.read(state_dir / "journal"))
    with Connection(store.url) as connection:
        return bool(want.marks) and ledger.read(connection) == want


def test_dead_writers_are_closed_counted_and_folded(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    assert all(one.closed_by_salvage for one in directories(tmp_path / "journal"))
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["gone"]
    eventually(lambda: is_level(tmp_path, store))


def test_a_writer_that_dies_later_follows_at_a_poke(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    eventually(lambda: is_level(tmp_path, store))
    dead_writer(tmp_path, seed=3)
    caretaker.poke()
    eventually(lambda: all(one.closed_by_salvage for one in directories(tmp_path / "journal")))
    eventually(lambda: is_level(tmp_path, store))


def test_a_store_that_lost_everything_is_level_again_after_a_poke(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    eventually(lambda: is_level(tmp_path, store))
    with Connection(store.url) as connection:
        connection.ask("FLUSHALL")
    caretaker.poke()
    eventually(lambda: is_level(tmp_path, store))


def test_a_store_that_comes_back_without_its_data_is_level_again_unasked(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    eventually(lambda: is_level(tmp_path, store))
    with Connection(store.url) as connection:
        connection.ask("FLUSHALL")
        found = re.search(r"process_id:(\d+)", str(connection.ask("INFO", "server")))
    assert found
    os.kill(int(found[1]), signal.SIGKILL)

    def back_and_level() -> bool:
        store.keep_up()
        try:
            return is_level(tmp_path, store)
        except (OSError, RespError):
            return False  # it is not back yet, or still reading what it had

    eventually(back_and_level, within_s=20)


def test_the_end_folds_what_came_last(tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker) -> None:
    eventually(lambda: is_level(tmp_path, store))
    dead_writer(tmp_path, seed=3)
    caretaker.close(10)
    assert is_level(tmp_path, store)


def ready(store: Embedded) -> set[str]:
    """Tenants that the store calls ready in its epoch."""
    with Connection(store.url) as connection:
        epoch = connection.ask("GET", "wb:1:epoch")
        metas = {key: connection.hash(key) for key in connection.keys("wb:1:{*}:meta")}
    return {
        key[len("wb:1:{") : -len("}:meta")]
        for key, meta in metas.items()
        if epoch is not None and epoch == meta.get("epoch") == meta.get("ready")
    }


def test_tenants_are_ready_once_all_is_folded_in_each_life_of_the_store(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    everybody = {"acme", "globex", "newcomer"}  # of the journals, and of the configuration
    eventually(lambda: ready(store) == everybody)
    assert is_level(tmp_path, store)
    with Connection(store.url) as connection:
        before = connection.ask("GET", "wb:1:epoch")
        connection.ask("HSET", "wb:1:writers", "wgone", json.dumps(
            {"epoch": before, "host": "h2", "seen_ns": 1, "seq": 5, "state": "open"}
        ))  # fmt: skip
        caretaker.poke()
        eventually(lambda: "wgone" in caretaker._upkeep.register._writers)
        connection.ask("FLUSHALL")
        eventually(lambda: is_level(tmp_path, store))
        eventually(lambda: "wgone" in connection.hash("wb:1:writers"))
        assert connection.ask("GET", "wb:1:epoch") not in (None, before)
        assert ready(store) == set()  # a journal that was known is not to be found: named, and waited for
        connection.ask("HSET", "wb:1:writers", "wgone", json.dumps(
            {"host": "", "seen_ns": 0, "seq": 0, "state": "gone"}
        ))  # fmt: skip
        eventually(lambda: ready(store) == everybody)


def test_a_tenants_keys_that_are_lost_alone_are_another_life_of_the_store(
    tmp_path: pathlib.Path, store: Embedded, caretaker: Caretaker
) -> None:
    eventually(lambda: len(ready(store)) == 3)
    with Connection(store.url) as connection:
        before = connection.ask("GET", "wb:1:epoch")
        connection.ask("DEL", *connection.keys("wb:1:{acme}:*"))
        caretaker.poke()
        eventually(lambda: len(ready(store)) == 3 and connection.ask("GET", "wb:1:epoch") != before)
    assert is_level(tmp_path, store)
