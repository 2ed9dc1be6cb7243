"""The breaks, by name."""

import asyncio
import errno
import functools
import itertools
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from backends.upstream import Attempt
from metering import record
from metering.journal import chain, journal, salvage
from metering.journal.ballast import Ballast
from metering.journal.journal import Directory, Journal
from metering.ledger.folder import Folder
from metering.ledger.store import Store
from metering.pages import gone

LATE_S = 0.2
"""A killed process keeps what it has written, so to be seen a write must come turns later, not one."""


def release_before_write() -> None:
    """Seal then release, the other way round: calls and ends are let go, and their lines written later."""
    write, close = Journal.write, Journal.close
    late: dict[Journal, list[Callable[[], None]]] = {}

    def write_later(journal: Journal, data: bytes, first_seq: int, hour: int) -> None:
        late.setdefault(journal, []).append(functools.partial(write, journal, data, first_seq, hour))
        asyncio.get_running_loop().call_later(LATE_S, write_first, journal)

    def write_first(journal: Journal) -> None:
        if late[journal]:
            late[journal].pop(0)()

    def close_after(journal: Journal) -> None:
        for one in late.pop(journal, []):
            one()
        late[journal] = []
        close(journal)

    Journal.write, Journal.close = write_later, close_after


def dead_not_folded() -> None:
    """The ledger never hears of a directory whose writer has died."""

    async def fold(_folder: Folder, _directories: object) -> int:
        return 0

    Folder.fold = fold


def dead_not_counted() -> None:
    """A dead worker's counters go with its page."""
    gone.counted = lambda *_: {}


def dead_folded_once() -> None:
    """What has been folded of a dead writer is never compared with the store again."""
    fold = Folder.fold
    folded: set[str] = set()

    async def fold_new(folder: Folder, directories: Iterable[Directory]) -> int:
        new = [each for each in directories if each.writer not in folded]
        left = await fold(folder, new)
        folded.update(each.writer for each in new if each.complete)
        return left

    Folder.fold = fold_new


def predecessor_not_asked_for() -> None:
    """The store takes a batch whatever came before it."""
    _edit_script(_GAP, "")


def mark_not_checked() -> None:
    """The store takes every batch, those that it has already too."""
    _edit_script(_DONE, "")
    _edit_script(_GAP, "")


def lost_not_closed() -> None:
    """A dead writer's directory is closed, and the calls that it left open have no record."""
    close = salvage.close

    def close_without_lost(pieces: Iterable[chain.Chained | bytes], begin: chain.Place) -> salvage.Closed:
        without = (
            piece._replace(line=None)
            if isinstance(piece, chain.Chained) and isinstance(piece.line, record.Admitted)
            else piece
            for piece in pieces
        )
        return close(without, begin)

    salvage.close = close_without_lost


def lost_for_nothing() -> None:
    """A lost call costs nothing, whatever its admission says."""
    lost = salvage.lost

    def lost_free(admitted: record.Admitted, *, at_ns: int, seq: int, prev: str) -> record.CallRecord:
        free = msgspec.structs.replace(admitted, expected=msgspec.UNSET)
        return lost(free, at_ns=at_ns, seq=seq, prev=prev)

    salvage.lost = lost_free


def salvaged_in_place() -> None:
    """The end of a dead directory is written where it belongs at once, and not put there whole by a rename."""

    def close(directory: Directory) -> journal.Salvaged:
        closed = salvage.close(chain.walk(directory.segments()))
        half = len(closed.data) // 2
        fd = os.open(directory.path / journal.SALVAGE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for part in (closed.data[:half], closed.data[half:]):
            os.write(fd, part)
            os.fsync(fd)
        os.close(fd)
        return journal.Salvaged(directory, closed.lost, closed.torn_bytes)

    journal._close = close


def gap_counted() -> None:
    """The store adds up a batch that does not fit, and asks for it again."""
    add = "for i = 4, #ARGV, 3 do redis.call('HINCRBY', KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]) end\n"
    _edit_script(_GAP, _GAP.replace("then\n", "then\n" + add))


def disk_broken() -> None:
    """No break of ours: the disk takes no write for as long as there is a file at KILL_TEST_BROKEN."""
    write, create, broken = Journal.write, Journal.create, pathlib.Path(os.environ["KILL_TEST_BROKEN"])

    def write_or_fail(journal: Journal, data: bytes, first_seq: int, hour: int) -> None:
        if broken.exists():
            journal.dead = True
            raise OSError(errno.EIO, "Input/output error")
        write(journal, data, first_seq, hour)

    def create_or_fail(*where: object, **options: object) -> Journal:
        if broken.exists():
            raise OSError(errno.EROFS, "Read-only file system")
        return create(*where, **options)

    Journal.write, Journal.create = write_or_fail, create_or_fail


def no_ballast() -> None:
    """Calls are admitted though no room is kept for their records."""
    Ballast.resize = lambda ballast, _wanted: setattr(ballast, "calls", 1_000_000) or True


def clock_set() -> None:
    """No break of ours: the wall clock is off by as many seconds as the file at KILL_TEST_CLOCK says."""
    file, now_ns, now = pathlib.Path(os.environ["KILL_TEST_CLOCK"]), time.time_ns, time.time

    def off_s() -> int:
        try:
            return int(file.read_text() or 0)
        except FileNotFoundError:
            return 0

    time.time_ns = lambda: now_ns() + off_s() * 1_000_000_000
    time.time = lambda: now() + off_s()


def clock_believed() -> None:
    """The same, and whatever it says is believed, for deletions too."""
    clock_set()  # first: what is imported takes the clock that it finds

    from metering.ledger import believed

    believed.advanced = lambda _memory, wall_ns, _passed_ns: believed.Memory(believed_ns=wall_ns)


def slow_write() -> None:
    """No break of ours: each write to the disk takes a second, for as long as there is a file at KILL_TEST_SLOW."""
    write, slow = Journal.write, pathlib.Path(os.environ["KILL_TEST_SLOW"])

    def write_slowly(journal: Journal, data: bytes, first_seq: int, hour: int) -> None:
        if slow.exists():
            time.sleep(1)
        write(journal, data, first_seq, hour)

    Journal.write = write_slowly


def disk_stopped() -> None:
    """No break of ours: the disk stands still for as long as there is a file at KILL_TEST_STOPPED.

    Syncs wait at once; writes go into the page cache for a moment, and then wait too.
    """
    stopped, moment_s = pathlib.Path(os.environ["KILL_TEST_STOPPED"]), 0.5
    write, sync_work = Journal.write, Journal.sync_work

    def wait(moment_s: float) -> None:
        try:
            began_s = stopped.stat().st_mtime
        except FileNotFoundError:
            return
        if time.time() - began_s >= moment_s:
            while stopped.exists():
                time.sleep(0.01)

    def write_when_it_goes(journal: Journal, data: bytes, first_seq: int, hour: int | None) -> None:
        wait(moment_s)
        write(journal, data, first_seq, hour)

    def sync_when_it_goes(journal: Journal) -> Callable[[], None]:
        work = sync_work(journal)

        def sync() -> None:
            wait(0)
            work()

        return sync

    Journal.write, Journal.sync_work = write_when_it_goes, sync_when_it_goes


def slow_sync() -> None:
    """The same of each sync."""
    sync_work, slow = Journal.sync_work, pathlib.Path(os.environ["KILL_TEST_SLOW"])

    def slowly(journal: Journal) -> Callable[[], None]:
        work = sync_work(journal)

        def sync() -> None:
            if slow.exists():
                time.sleep(1)
            work()

        return sync

    Journal.sync_work = slowly


def events_cut_at_reads() -> None:
    """The reader takes each read for whole events: one that is cut is lost."""
    from backends.reader import StreamReader

    feed = StreamReader.feed

    def feed_whole(reader: StreamReader, data: bytes) -> bytes:
        return feed(reader, data[: data.rfind(b"\n\n") + 2] or data)

    StreamReader.feed = feed_whole


def slow_rounds() -> None:
    """No break: for as long as there is a file at KILL_TEST_SLOW, each sweep holds the loop up for 150 ms."""
    from gateway.processes import rounds

    sweep, slow = rounds.sweep, pathlib.Path(os.environ["KILL_TEST_SLOW"])

    def sweep_slowly(*what: Any) -> None:
        sweep(*what)
        if slow.exists():
            time.sleep(0.15)

    rounds.sweep = sweep_slowly


def bodies_logged() -> None:
    """Somebody left a debugging aid in."""
    from gateway.api import openai_api

    read_ask = openai_api.read_ask

    def read_and_log(body: bytes, operation: object) -> object:
        logging.getLogger("weighbridge").warning("request %s", body)
        return read_ask(body, operation)

    openai_api.read_ask = read_and_log


def fault_with_a_secret() -> None:
    """A fault of ours whose message holds what nobody may read."""
    from backends.upstream import Upstream

    send = Upstream.send

    def send_or_fail(upstream: Upstream, method: str, *more: object) -> object:
        if method == "POST":
            raise RuntimeError("db password=abc")
        return send(upstream, method, *more)

    Upstream.send = send_or_fail


def digest_unkeyed() -> None:
    """A digest of prompts that anybody can try out."""
    import hashlib

    from metering.journal.digests import DigestKey

    DigestKey.of = lambda _key, data: f"hmac-sha256:{hashlib.sha256(data).hexdigest()}"


def digest_without_the_end() -> None:
    """The digest of an answer is of what has left when its record is made."""
    from gateway.calls.call import Call

    Call.tail = b""


def content_in_clear() -> None:
    """What is kept of a call is not encrypted."""
    from metering.capture import frame
    from metering.capture.envelope import Recipient

    def seal(_recipient: Recipient, header: frame.Header, prompt: bytes, answer: bytes) -> bytes:
        return frame.front(header) + bytes(frame.BOX_EXTRA_BYTES) + prompt + answer

    Recipient.seal = seal


def content_after_the_record() -> None:
    """A record says that content is kept before it is in the file."""
    from metering.capture import keeper

    append = keeper._File.append
    promised: dict[keeper._File, int] = {}

    def append_later(file: keeper._File, data: bytes) -> int:
        at = promised.get(file, 0)
        promised[file] = at + len(data)
        threading.Timer(30 * LATE_S, append, (file, data)).start()
        return at

    keeper._File.append = append_later


def content_not_synced() -> None:
    """Records are made durable, and the content that they speak of is not."""
    from metering.capture.keeper import Keeper

    Keeper.sync = lambda _keeper: None


def content_disk_full() -> None:
    """No break of ours: the disk has no room for content for as long as there is a file at KILL_TEST_BROKEN."""
    from metering.capture.keeper import Keeper

    is_full, broken = Keeper._is_full, pathlib.Path(os.environ["KILL_TEST_BROKEN"])
    Keeper._is_full = lambda one: broken.exists() or is_full(one)


def look_not_told() -> None:
    """What is read of a face is told after its answer has left, or not at all."""
    from gateway.faces.faces import Face

    async def told(*_: object) -> None:
        return

    Face.look_told = told


def scope_not_checked() -> None:
    """Any key opens the faces that need a scope."""
    from gateway.api.openai_api import credentials
    from gateway.faces.faces import Face

    Face.principal = lambda face, request: face._entrance.keys.principal(*credentials(request))


def refusals_forgotten() -> None:
    """Of refusals that share a line the first one alone is counted."""
    from metering.journal.refusals import Refusal

    Refusal.folded = lambda first, _other: first


def refusals_unfolded() -> None:
    """Each refusal has a line of its own."""
    from metering.journal import refusals

    refusals.LINES_PER_S_MAX = 1 << 60


def mirror_forgets() -> None:
    """Now and then the copy lacks a turn, and nobody counts it."""
    from metering.journal.mirror import Mirror

    put = Mirror.put
    turns = itertools.count(1)

    def put_most(mirror: Mirror, data: bytes) -> None:
        if next(turns) % 10:
            put(mirror, data)

    Mirror.put = put_most


def mirror_ahead() -> None:
    """A line is copied when it is made, whatever becomes of it in the journal."""
    from metering.journal.recorder import Recorder

    make = Recorder._make_turn

    def make_and_copy(recorder: Recorder, *what: Any, **more: Any) -> object:
        turn = make(recorder, *what, **more)
        if recorder._mirror is not None and turn.data:
            recorder._mirror(turn.data)
        return turn

    Recorder._make_turn = make_and_copy


def tick_forgets_what_is_open() -> None:
    """Ticks say that no call is open."""
    import msgspec

    from metering.journal.recorder import Recorder

    make = Recorder._make_tick
    Recorder._make_tick = lambda recorder, seq, prev: msgspec.structs.replace(
        make(recorder, seq, prev), open_calls=0, oldest_admitted_ns=None
    )


def tick_names_the_newest() -> None:
    """Ticks name the newest call that is open, in the place of the oldest."""
    import msgspec

    from metering.journal.recorder import Recorder

    make = Recorder._make_tick
    Recorder._make_tick = lambda recorder, seq, prev: msgspec.structs.replace(
        make(recorder, seq, prev), oldest_admitted_ns=next(reversed(recorder._open.values()), None)
    )


def proxies_believed() -> None:
    """The first address of X-Forwarded-For is the client's: whatever he writes there."""
    from gateway.directory import sources

    of = sources.Sources.of

    def first(known: sources.Sources, origin: sources.Origin) -> object:
        headers = [(name, value.split(b",")[0]) for name, value in origin.headers]
        return of(known, sources.Origin(origin.peer, headers))

    sources.Sources.of = first


def attempts_unlimited() -> None:
    """Whoever guesses keys may go on."""
    from gateway.directory.attempts import Attempts

    Attempts.failed = lambda *_: None


def revoked_forgotten() -> None:
    """The newest entry wins in all, so that a store with an older copy brings a revoked key back."""
    from metering.ledger import directory

    directory.join = lambda one, other: max(one, other, key=lambda entry: (not entry.revoked, entry.version))


def change_untold() -> None:
    """A change of the directory counts, and the journal has none of it."""
    from gateway.directory.changer import Changer

    async def tell(*_: object) -> None:
        return

    Changer._tell = tell


def copies_unheard() -> None:
    """A worker hears of no change but its own."""
    from gateway.directory.watcher import Watcher

    async def hear(*_: object) -> None:
        return

    Watcher._hear = Watcher._look_at_file = hear


_DONE = "if not_below(seq, last_seq) then\n  return {'DONE', mark}\nend\n"
_GAP = "if mark ~= prev then\n  return {'GAP', mark}\nend\n"


def _edit_script(old: str, new: str) -> None:
    init = Store.__init__

    def init_edited(store: Store, *args: object, **options: object) -> None:
        init(store, *args, **options)
        assert store._script.count(old) == 1
        store._script = store._script.replace(old, new)

    Store.__init__ = init_edited


def broken_off_late() -> None:
    """A call that is broken off frees its slot, and its connection is closed only when its backend has nearly ended."""
    abort = Attempt.abort

    def abort_later(attempt: Attempt) -> None:
        attempt._exchange = _Deaf()
        asyncio.get_running_loop().call_later(LATE_S, abort, attempt)

    Attempt.abort = abort_later


class _Deaf:
    """An exchange that hears nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


MUTATIONS = {
    each.__name__: each
    for each in (
        release_before_write,
        dead_not_folded,
        dead_not_counted,
        dead_folded_once,
        predecessor_not_asked_for,
        mark_not_checked,
        lost_not_closed,
        lost_for_nothing,
        salvaged_in_place,
        gap_counted,
        disk_broken,
        no_ballast,
        clock_set,
        clock_believed,
        disk_stopped,
        slow_write,
        slow_sync,
        events_cut_at_reads,
        slow_rounds,
        bodies_logged,
        fault_with_a_secret,
        digest_unkeyed,
        digest_without_the_end,
        content_in_clear,
        content_after_the_record,
        content_disk_full,
        content_not_synced,
        look_not_told,
        scope_not_checked,
        refusals_forgotten,
        refusals_unfolded,
        mirror_forgets,
        mirror_ahead,
        tick_forgets_what_is_open,
        tick_names_the_newest,
        proxies_believed,
        attempts_unlimited,
        revoked_forgotten,
        change_untold,
        broken_off_late,
        copies_unheard,
    )
}
