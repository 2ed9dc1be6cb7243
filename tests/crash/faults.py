"""What can befall a gateway under load: each does its harm, looks where the calls were, and brings back what it took.

Each is a function of a bed and a source of chance; it returns the census of its moment.
"""

import contextlib
import pathlib
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator

from tests.crash.bed import DEATH_S, Bed
from tests.crash.census import Census
from tests.crash.probe import ARM, MODES
from tests.oracle import journal
from tests.oracle.faults import Fault, Kind
from tests.support.disks import Filler
from tests.support.gateway import eventually

OPERATIONS_WORKER = 12
OPERATIONS_SUPERVISOR = 8
"""Disk operations within which an armed process dies: a salvage and the pages behind it are about so many."""
STARTS_MAX = 3
BEHIND_S_MAX = 1.5
"""How much a store loses that has no AOF, or whose replica lags."""
STOPS_S = (0.3, 1.0, 2.5, 6.0, 10.0)
TORN_BYTES_MAX = 6_000
FILLER = "filler"
FULL_S_MAX = 3.0
FOLD_S_MAX = 60.0
SALVAGED_S = 30.0


# Processes


def worker_killed(bed: Bed, rng: random.Random) -> Census:
    """One of the workers."""
    victim = rng.choice(bed.wait_for_workers())
    return bed.census_of_killed([victim], [victim])


def worker_at_disk(bed: Bed, rng: random.Random) -> Census:
    """A worker at one of its disk operations: before a write, half through it, behind it, at a sync."""
    victim = rng.choice(bed.wait_for_workers())
    bed.arm(victim, rng, OPERATIONS_WORKER)
    bed.die_armed(victim)
    return bed.census([victim])


def supervisor_killed(bed: Bed, rng: random.Random) -> Census:
    """The supervisor; its workers end by themselves. Another is started at once."""
    seen = bed.census(bed.workers())
    bed.kill([bed.supervisor])
    bed.restart()
    return seen


def supervisor_at_disk(bed: Bed, rng: random.Random) -> Census:
    """A worker, and the supervisor while it closes and counts what that has left."""
    victim = rng.choice(bed.wait_for_workers())
    bed.arm(bed.supervisor, rng, OPERATIONS_SUPERVISOR)
    seen = bed.census_of_killed([victim], [victim])
    bed.die_armed(bed.supervisor)
    bed.restart()
    return seen


def all_killed(bed: Bed, rng: random.Random) -> Census:
    """Supervisor and workers at one moment."""
    seen = _everybody_killed(bed)
    bed.restart()
    return seen


def start_killed(bed: Bed, rng: random.Random) -> Census:
    """All at once; and then starts that die at a disk operation of theirs."""
    seen = _everybody_killed(bed)
    for _ in range(rng.randrange(1, STARTS_MAX + 1)):
        bed.front.restart(**{ARM: f"{rng.randrange(1, 2 * OPERATIONS_SUPERVISOR)}:{rng.choice(MODES)}"})
        bed.wait_for_end(bed.supervisor, DEATH_S)
        bed.kill(bed.everybody())
    bed.restart()
    return seen


def _everybody_killed(bed: Bed) -> Census:
    return bed.census_of_killed(bed.everybody(), bed.workers())


# The store


def store_killed(bed: Bed, rng: random.Random) -> Census:
    """With its AOF on: nothing is lost; it is away for a moment."""
    bed.store.kill()
    seen = bed.census(bed.workers())
    time.sleep(rng.uniform(0, 1))
    bed.store.start()
    return seen


def store_loses_seconds(bed: Bed, rng: random.Random) -> Census:
    """Without an AOF: it is back with what a snapshot held, or with nothing."""
    bed.store.keep_in_memory(snapshot=rng.random() < 0.7)
    time.sleep(rng.uniform(0, BEHIND_S_MAX))
    bed.store.kill()
    seen = bed.census(bed.workers())
    bed.store.start_from_snapshot()
    return seen


def store_flushed(bed: Bed, rng: random.Random) -> Census:
    """FLUSHALL, and at times once more while it is being filled."""
    bed.store.flush()
    seen = bed.census(bed.workers())
    if rng.random() < 0.4:
        time.sleep(rng.uniform(0, 0.3))
        bed.store.flush()
    return seen


def store_fails_over(bed: Bed, rng: random.Random) -> Census:
    """A replica that lags takes its place."""
    replica = bed.store.replica()
    time.sleep(rng.uniform(0, BEHIND_S_MAX))
    bed.store.fail_over(replica)
    return bed.census(bed.workers())


def store_stopped(bed: Bed, rng: random.Random) -> Census:
    """SIGSTOP, for up to 10 s."""
    seen = bed.census(bed.workers())
    bed.store.stop_for(rng.choice(STOPS_S))
    return seen


# The disk


def disk_full(bed: Bed, rng: random.Random) -> Census:
    """No byte more can be written for a while; on a disk that cannot be made small, the workers' files cannot grow."""
    seen = bed.census(bed.workers())
    with _filled(bed):
        time.sleep(rng.uniform(0.3, FULL_S_MAX))
    return seen


@contextlib.contextmanager
def _filled(bed: Bed) -> Iterator[None]:
    if not bed.mounted:
        with _limited(bed):
            yield
        return
    filler = Filler(bed.front.state_dir / FILLER)
    filler.fill()
    try:
        yield
    finally:
        filler.remove()


@contextlib.contextmanager
def _limited(bed: Bed) -> Iterator[None]:
    limited = bed.workers()
    for pid in limited:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for pid in limited:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def power_cut(bed: Bed, rng: random.Random) -> Census:
    """All at once, and the disk forgets what was not synced; the store at times with it.

    Whoever has read the end of an answer whose record is forgotten is excused, unless each line is synced before that.
    """
    cut_ns = time.time_ns()
    seen = _everybody_killed(bed)
    before = bed.books.writers()
    with bed.books.still(counters_restart=True):
        bed.power.cut(rng)
    if not bed.always_synced:
        bed.books.excuse(before, "power cut", recent_ns=cut_ns)
    if rng.random() < 0.3:
        bed.store.flush()
    bed.restart()
    return seen


def torn_bytes(bed: Bed, rng: random.Random) -> Census:
    """All at once; behind the last line of a dead journal stand bytes that are no line."""
    seen = _everybody_killed(bed)
    with bed.books.still(counters_restart=False):
        segment = _last_segment(bed, rng)
        torn = (
            rng.randbytes(rng.randrange(1, TORN_BYTES_MAX)) if rng.random() < 0.7 else bytes(TORN_BYTES_MAX)
        )
        with segment.open("ab") as file:
            file.write(torn)
    bed.restart()
    return seen


def flipped_bytes(bed: Bed, rng: random.Random) -> Census:
    """All at once; in what a dead worker had written and not synced, a byte is another. It is found, not repaired.

    The supervisor is held meanwhile, and the worker dies at a write, so that there is such a line. One that another
    follows is hit, where there is one: nothing is chained to the last, and only a disk's own checksum guards it.
    """
    victim = rng.choice(bed.wait_for_workers())
    bed.hold_supervisor()
    bed.arm(victim, rng, OPERATIONS_WORKER)
    bed.die_armed(victim)
    seen = bed.census_of_killed(bed.everybody(), [victim, *bed.workers()])
    before, flips = bed.books.writers(), bed.books.flips
    with bed.books.still(counters_restart=True):
        writer = _flip(bed, rng, victim)
        bed.restart()
        eventually((bed.journals / writer / journal.SALVAGE).exists, within_s=SALVAGED_S)
    bed.books.excuse(before, "flipped byte")
    if bed.books.flips > flips:
        _expect_found(bed, writer)
    return seen


def _flip(bed: Bed, rng: random.Random, pid: int) -> str:
    """Flip a bit in the journal of this process, unless all of it was synced. returns: its writer."""
    writer = next(one for one in bed.books.writers() if one.lines and one.lines[0]["pid"] == pid)
    segments = sorted((bed.journals / writer.name).glob("[0-9]*.jsonl"))
    data = bytearray(segments[-1].read_bytes())
    durable = bed.power.durable_bytes(segments[-1])
    end = data.rfind(b"\n") + 1  # of the last whole line
    last = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    if durable >= end:
        return writer.name
    at = rng.randrange(durable, last) if durable < last else end - 1
    data[at] ^= 1 << rng.randrange(8)
    hit_seq = int(segments[-1].stem) + data.count(b"\n", 0, at)
    bed.books.excused.add(f"{writer.name} line {hit_seq}")
    segments[-1].write_bytes(data)
    bed.books.flips += 1
    return writer.name


def _expect_found(bed: Bed, writer: str) -> None:
    """The salvage says that there were bytes that are no lines."""
    (closed,) = (one for one in bed.books.writers() if one.name == writer)
    if not closed.lines or closed.lines[-1].get("torn_bytes", 0) == 0:
        bed.books.found.append(Fault(Kind.CHAIN, writer, "a flipped byte was not found"))


def _last_segment(bed: Bed, rng: random.Random) -> pathlib.Path:
    """Of a journal whose writer was killed just now."""
    writer = rng.choice([one for one in bed.books.writers() if not one.closed])
    return sorted((bed.journals / writer.name).glob("[0-9]*.jsonl"))[-1]


def copied_and_folded(bed: Bed, rng: random.Random) -> Census:
    """All at once; a copy of all journals is closed and folded elsewhere, twice, while the gateway does it at home."""
    seen = _everybody_killed(bed)
    copy = bed.front.directory / "copy"
    shutil.copytree(bed.journals, copy)
    with bed.books.still(
        counters_restart=False
    ):  # the copy is closed first: the ledger is ahead of what is at home
        bed.restart()
        for _ in range(2):
            if said := bed.fold_elsewhere(copy):
                bed.books.found.append(Fault(Kind.LEDGER, "copy", said))
        for salvage in copy.glob(f"*/{journal.SALVAGE}"):
            home = bed.journals / salvage.parent.name / journal.SALVAGE
            eventually(home.exists, within_s=FOLD_S_MAX)
            if home.read_bytes() != salvage.read_bytes():
                what = "its copy was closed to other bytes"
                bed.books.found.append(Fault(Kind.CHAIN, salvage.parent.name, what))
    shutil.rmtree(copy)
    return seen


FAULTS: dict[str, Callable[[Bed, random.Random], Census]] = {
    each.__name__: each
    for each in (
        worker_killed, worker_at_disk, supervisor_killed, supervisor_at_disk, all_killed, start_killed,
        store_killed, store_loses_seconds, store_flushed, store_fails_over, store_stopped,
        disk_full, torn_bytes, flipped_bytes, copied_and_folded, power_cut,
    )
}  # fmt: skip
