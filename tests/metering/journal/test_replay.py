"""Reading a directory again from the marks in the store."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.journal.replay import Replay, Stopped, Trimmed, after_seq
from metering.ledger.ledger import START, Balances, Done, Gap, Mark, Posted, Refused
from tests.support import lines
from tests.support.ledgers import TENANTS, MemoryDirectory, folded, random_directory


def directory_of(*tenants: str) -> MemoryDirectory:
    directory = MemoryDirectory("w")
    for tenant in tenants:
        directory.add(lines.call(tenant=tenant))
    return directory


def run(replay: Replay, directory: MemoryDirectory, balances: Balances, *, chunk: int = 3) -> None:
    rest = list(directory.billed(after_seq(replay.at.values())))
    while rest:
        for batch in replay.cut(rest[:chunk]):
            replay.answered(batch, balances.post(batch))
        rest = rest[chunk:]
    replay.end()


@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_it_goes_on_from_any_mark(rng: random.Random, chunk: int) -> None:
    directory = random_directory(rng, "w", rng.randrange(1, 40))
    balances = Balances()
    early = directory.copy()
    del early.lines[rng.randrange(len(early.lines)) :]
    run(Replay("w", dict.fromkeys(TENANTS, START)), early, balances)
    marks = {
        tenant: Mark.parse(balances.marks.get((tenant, "w"), str(START)))
        for tenant in TENANTS
        if rng.random() < 0.9
    } or {"acme": Mark.parse(balances.marks.get(("acme", "w"), str(START)))}

    replay = Replay("w", marks)
    run(replay, directory, balances, chunk=chunk)
    assert not replay.stopped
    assert not replay.again
    assert replay.at == {tenant: (directory.marks(tenant) or [START])[-1] for tenant in marks}
    values = {key: int(value) for key, value in balances.values.items() if key[0] in marks}
    assert values == {key: amount for key, amount in folded([directory]).items() if key[0] in marks}


def test_it_begins_at_the_earliest_mark() -> None:
    assert after_seq([Mark(9, "9" * 16), Mark(5, "5" * 16)]) == 4
    assert after_seq([Mark(9, "9" * 16), START]) == 0


@pytest.mark.parametrize(
    "mark",
    [
        Mark(2, "f" * 16),  # the place of another tenant's record
        Mark(3, "f" * 16),  # our place, another line
        Mark(99, "f" * 16),  # further than this journal goes
    ],
)
def test_a_mark_of_another_journal_is_a_fork(mark: Mark) -> None:
    directory = directory_of("acme", "globex", "acme", "acme")
    balances = Balances()
    balances.marks["acme", "w"] = str(mark)
    replay = Replay("w", {"acme": mark, "globex": START})
    run(replay, directory, balances, chunk=1)
    assert replay.stopped == {"acme": Stopped(tenant="acme", writer="w", reason="FORK", where=str(mark))}
    assert replay.at == {"globex": directory.marks("globex")[-1]}
    assert {key[0] for key in balances.values} == {"globex"}


def test_a_line_that_is_no_record_can_not_be_at_a_mark() -> None:
    directory = MemoryDirectory("w")
    _, seq, leaf = directory.add(lines.admitted(tenant="acme"))
    directory.add(lines.call(tenant="acme"))
    replay = Replay("w", {"acme": Mark(seq, leaf[:16])})
    run(replay, directory, Balances())
    assert replay.stopped["acme"].reason == "FORK"


def test_another_folder_may_be_ahead() -> None:
    directory = directory_of("acme", "acme", "acme", "acme")
    balances = Balances()
    run(Replay("w", {"acme": START}), directory, balances)
    again = Replay("w", {"acme": START})  # as if it had asked for the mark before that
    run(again, directory, balances, chunk=1)
    assert again.at == {"acme": directory.marks("acme")[-1]}
    assert {key: int(value) for key, value in balances.values.items()} == folded([directory])


def test_another_folder_may_be_ahead_with_another_journal() -> None:
    ours, theirs = directory_of("acme", "acme"), MemoryDirectory("w")
    for _ in range(3):
        theirs.add(lines.call(tenant="acme"), salt="closed elsewhere")
    balances = Balances()
    run(Replay("w", {"acme": START}), theirs, balances)
    replay = Replay("w", {"acme": START})
    run(replay, ours, balances)
    assert replay.stopped["acme"].reason == "FORK"
    assert {key: int(value) for key, value in balances.values.items()} == folded([theirs])


def test_a_mark_that_moves_away_is_left_to_the_next_reading() -> None:
    directory = directory_of("acme", "acme", "globex")
    replay = Replay("w", {"acme": START, "globex": START})
    for batch in replay.cut(directory.billed()):
        gone = batch.tenant == "acme"
        replay.answered(batch, Gap(directory.marks("acme")[0]) if gone else Done(batch.last))
    replay.end()
    assert replay.again == {"acme": directory.marks("acme")[0]}
    assert replay.at == {"globex": directory.marks("globex")[0]}


def test_a_store_that_falls_behind_meanwhile_is_noticed() -> None:
    directory = directory_of("acme", "acme", "acme")
    replay = Replay("w", {"acme": START})
    for record in list(directory.billed())[:2]:
        (batch,) = replay.cut([record])
        replay.answered(batch, Posted())
    assert not replay.fell
    (batch,) = replay.cut(directory.billed(2))
    replay.answered(batch, Gap(START))
    assert replay.fell
    assert replay.again == {"acme": START}


def test_the_same_place_with_another_leaf_is_a_fork() -> None:
    directory = directory_of("acme", "acme")
    replay = Replay("w", {"acme": START})
    (batch,) = replay.cut(directory.billed())
    replay.answered(batch, Done(Mark(2, "f" * 16)))
    assert replay.stopped["acme"] == Stopped(
        tenant="acme", writer="w", reason="FORK", where="2:ffffffffffffffff"
    )


def test_a_refused_batch_stops_its_stream_only() -> None:
    directory = directory_of("acme", "globex", "acme")
    replay = Replay("w", {"acme": START, "globex": START})
    for batch in replay.cut(list(directory.billed())[:2]):
        replay.answered(batch, Refused("RANGE", "f") if batch.tenant == "acme" else Done(batch.last))
    assert replay.cut(directory.billed(2)) == []
    replay.end()
    assert replay.stopped == {"acme": Stopped(tenant="acme", writer="w", reason="RANGE", where="f")}
    assert set(replay.at) == {"globex"}


def test_a_mark_before_what_is_still_here_is_for_the_archive_where_it_is_not_known_what_is_there() -> None:
    """Between that mark and the first line here its tenant may have more records, or none: it is not to be seen."""
    directory = directory_of("acme", "globex", "acme", "globex", "acme")
    marks = {"acme": directory.marks("acme")[0], "globex": directory.marks("globex")[0], "initech": START}
    balances = Balances()
    balances.marks |= {(tenant, "w"): str(at) for tenant, at in marks.items() if at != START}
    replay = Replay("w", marks, trimmed=Trimmed(2, None))
    for batch in replay.cut(directory.billed(2)):
        replay.answered(batch, balances.post(batch))
    replay.end()
    assert {tenant: stop.reason for tenant, stop in replay.stopped.items()} == {
        "acme": "ARCHIVED",
        "initech": "ARCHIVED",
    }
    assert replay.at == {"globex": directory.marks("globex")[-1]}


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (Mark(3, "3" * 16), ""),  # its last record before: all that the store lacks is here
        (Mark(1, "1" * 16), "ARCHIVED"),
        (START, "ARCHIVED"),
        (Mark(3, "f" * 16), "FORK"),
        (Mark(4, "4" * 16), "FORK"),  # a place that no record of it has
        (Mark(6, "6" * 16), ""),  # among the lines that are here; to be met there
    ],
)
def test_what_is_in_the_archive_alone_stops_who_lacks_it(at: Mark, reason: str) -> None:
    trimmed = Trimmed(5, {"acme": Mark(3, "3" * 16)})
    assert trimmed.stops("acme", at) == reason
    assert trimmed.stops("nobody", START) == "", "a tenant without a record there lacks nothing"
    assert Replay("w", {"acme": at}, trimmed=trimmed).stopped.keys() == ({"acme"} if reason else set())


def test_a_quiet_tenant_goes_on_behind_a_trimmed_front() -> None:
    directory = directory_of("acme", "globex", "globex", "acme")
    (first, last), front = directory.marks("acme"), directory.marks("globex")
    balances = Balances()
    balances.marks |= {("acme", "w"): str(first), ("globex", "w"): str(front[-1])}
    trimmed = Trimmed(3, {"acme": first, "globex": front[-1]})
    replay = Replay("w", {"acme": first, "globex": front[-1], "initech": START}, trimmed=trimmed)
    for batch in replay.cut(directory.billed(3)):
        replay.answered(batch, balances.post(batch))
    replay.end()
    assert replay.stopped == {}
    assert replay.at == {"acme": last, "globex": front[-1], "initech": START}


def test_a_tenant_that_is_met_later() -> None:
    directory = directory_of("acme", "globex")
    replay = Replay("w", {})
    replay.meet("acme", START)
    replay.meet("globex", Refused("FORM", "w"))
    (batch,) = replay.cut(directory.billed())
    replay.answered(batch, Posted())
    assert replay.stopped == {"globex": Stopped(tenant="globex", writer="w", reason="FORM", where="w")}
    assert replay.at == {"acme": directory.marks("acme")[0]}
