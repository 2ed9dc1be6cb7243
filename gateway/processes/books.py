"""Where a worker's calls are written down: its journal and the folds of it, opened again when the disk has failed.

    no journal could be made ──┬─ again and again ─▶ open ─▶ a write or a sync failed ─┬─ stop ─▶ the worker ends
                               └────────────────────────────────────── continue ◀──────┘

While there is none calls are refused (`journal.on_error: stop`), or go on and what is not written is shown
(`continue`). A directory that failed is never written again: what is opened is a fresh one, of another writer.
"""

import asyncio
import collections
import contextlib
import functools
import importlib.metadata
import logging
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from gateway.configuration import config as cfg
from gateway.configuration.config import Config
from gateway.configuration.config_last import Changes, ConfigLast
from gateway.processes import registrations
from gateway.processes.attempt_log import AttemptLog
from metering.audit import endnotes
from metering.audit.anchors import Anchors, log_checkpoint
from metering.audit.keys import Keys
from metering.audit.keywatch import KeyWatch
from metering.audit.notary import Notary, Signed
from metering.journal import events
from metering.journal import journal as journals
from metering.journal.journal import Journal
from metering.journal.mirror import LOCK, Mirror
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Shown, Unwritable
from metering.ledger.shipper import Shipper
from metering.ledger.store import Store
from metering.limits.limiter import Limiter
from metering.logs import log
from metering.pages.families import Bound
from metering.pages.pages import Page

PAGES = "pages"

logger = logging.getLogger("weighbridge.worker")


class Held(NamedTuple):
    """One journal, the two folds of it that somebody asks, who sees to its keys, and where its checkpoints go.

    stack: closes them.
    """

    recorder: Recorder
    page: Page
    shipper: Shipper
    keywatch: KeyWatch
    anchors: Anchors
    stack: contextlib.AsyncExitStack


class Books:
    """One worker's. recorder: replaced when they are opened again."""

    def __init__(
        self,
        config: Config,
        index: int,
        redis_url: str,
        *,
        behind: Callable[[], None],
        limiter: Limiter,
        mirror_fd: int | None = None,
        sync_before: Callable[[], None] | None = None,
    ) -> None:
        """index: of the worker; behind: told when a ledger mark has fallen behind what the store had acknowledged.

        limiter: told what is in the ledger, and which writer's the lines are.
        mirror_fd: where lines are copied to. sync_before: makes durable what lines speak of, before they are.
        """
        self._config = config
        self._index = index
        self._behind = behind
        self._limiter = limiter
        self._sync_before = sync_before
        self._state_dir = pathlib.Path(config.state_dir)
        self._store = Store(redis_url)
        self._shown = Shown(self._unwritten) if config.journal.on_error == "continue" else None
        self._uncounted: collections.Counter[str] = collections.Counter()  # lines, while there is no page
        self._untold: collections.Counter[str] = collections.Counter()  # lines, since a journal told of such
        self._mirror: Mirror | None = None
        if mirror_fd is not None:
            self._mirror = Mirror(mirror_fd, self._state_dir / LOCK, self._not_mirrored)
        self._held: Held | None = None
        self.recorder: Recorder | Unwritable

    @property
    def held(self) -> "Held | None":
        """What is open; None: nothing. What has failed is open until something else is."""
        return self._held

    @property
    def ends_the_worker(self) -> bool:
        """Is a journal that fails the end of its worker?"""
        return self._shown is None

    @property
    def is_written(self) -> bool:
        """Is there a journal that takes lines?"""
        return self.recorder.dead is None

    async def open(self, on_dead: Callable[[], None]) -> None:
        """Open them, or at least try to. on_dead: called when a journal that was open has failed."""
        writer = _new_writer()
        try:
            opened = await self._try(writer, on_dead)
        except OSError as error:
            _log_failed("journal cannot be made", error)
            self.recorder = Unwritable(writer, error, self._shown, loop=asyncio.get_running_loop())
            self._limiter.begin(writer)
        else:
            self._take(opened)

    async def again(self, on_dead: Callable[[], None], opened: Callable[[], None]) -> bool:
        """Open a fresh journal in the place of what there is. False: it still cannot be. opened: called once it is."""
        try:
            fresh = await self._try(_new_writer(), on_dead)
        except OSError:
            return False
        before = self._held
        self._take(fresh)
        opened()
        log(logger, logging.INFO, "journal is written again", writer=self.recorder.writer)
        if before is not None:
            before.page.publish()
            await before.stack.aclose()
        return True

    async def close(self) -> None:
        """Write what is under way, and close all of it."""
        if self._held is not None:
            await self._held.stack.aclose()
        await self._store.close()
        if self._mirror is not None:
            await asyncio.to_thread(self._mirror.close)

    def exceeded(self, bound: Bound) -> None:
        """A bound was passed, and no line of the journal will say so."""
        if self._held is not None:
            self._held.page.exceeded(bound)

    def captured(self, outcome: str) -> None:
        """What has become of a call's content."""
        if self._held is not None:
            self._held.page.captured(outcome)

    def compare(self) -> None:
        """The store has lost records of somebody else."""
        if self._held is not None:
            self._held.shipper.compare()

    def look(self) -> None:
        """Each second: take up a key that has changed, tell of lines that could not be written, and send the newest
        checkpoint elsewhere if it is time."""
        if self._held is not None:
            if self._untold and self.is_written and self.recorder.has_room():
                self.recorder.note(events.unwritten(self._untold).line(time.time_ns))
                self._untold.clear()
            self._held.keywatch.look(self._held.recorder)
            self._held.anchors.look()

    def _take(self, opened: Held) -> None:
        self._held, self.recorder = opened, opened.recorder
        self._limiter.begin(opened.recorder.writer)
        for kind in self._uncounted.elements():
            opened.page.unwritten(kind)
        self._uncounted.clear()

    def _left_out(self, page: Page, kind: str) -> None:
        self._untold[kind] += 1
        page.unwritten(kind)

    def _unwritten(self, kind: str) -> None:
        self._untold[kind] += 1
        if self._held is not None:
            self._held.page.unwritten(kind)
        else:
            self._uncounted[kind] += 1

    def _not_mirrored(self, lines: int) -> None:
        if self._held is not None:
            self._held.page.not_mirrored(lines)

    async def _try(self, writer: str, on_dead: Callable[[], None]) -> Held:
        """On return the `start` line is durable. Raises OSError."""
        config = self._config
        keywatch = KeyWatch(Keys(self._state_dir, config.journal.signing_key_file), time.time_ns)
        async with contextlib.AsyncExitStack() as stack:
            # In threads: a disk that hangs must not stop what goes on beside it.
            journal = await asyncio.to_thread(
                Journal.create,
                self._state_dir / "journal",
                writer=writer,
                segment_bytes_max=config.journal.segment_bytes_max,
                writers=config.workers,
            )
            stack.callback(journal.close)
            journal.sync_before = self._sync_before
            try:
                page = await asyncio.to_thread(Page, self._state_dir / PAGES, writer, on_stuck=_page_stuck)
            except OSError:  # on a full disk it is tried again and again: each time a directory would be left
                journal.close()
                await asyncio.to_thread(journal.discard)
                raise
            stack.callback(page.close)
            shipper = Shipper(
                self._store,
                journals.Directory(journal.path),
                host=socket.gethostname(),
                on_behind=self._behind,
                on_folded=self._limiter.folded,
                before_stating=self._limiter.confirm,
            )
            recorder = Recorder(
                journal,
                (page, shipper, AttemptLog()),
                Notary(writer, keywatch.key),
                loop=asyncio.get_running_loop(),
                clock=time.time_ns,
                bytes_max=config.journal.bytes_max,
                fsync=config.journal.fsync,
                fsync_interval_ms=config.journal.fsync_interval_ms,
                on_dead=functools.partial(_dead, on_dead),
                unwritten=functools.partial(self._left_out, page),
                shown=self._shown,
                mirror=self._mirror.put if self._mirror else None,
                parts_told_hours=config.journal.archive is not None,
            )
            anchors = Anchors((log_checkpoint, shipper.anchor), time.monotonic)
            recorder.on_checkpoint(anchors.checkpointed)
            recorder.on_checkpoint(functools.partial(_show_checkpoint, page, writer))
            try:
                await self._start(recorder)
            except OSError:
                await recorder.stop()
                await asyncio.to_thread(journal.discard)
                raise
            recorder.on_synced(shipper.synced)
            recorder.on_synced(anchors.synced)
            await stack.enter_async_context(shipper)
            stack.callback(anchors.send)
            stack.push_async_callback(recorder.stop)  # before the shipper, which so gets the last records
            return Held(recorder, page, shipper, keywatch, anchors, stack.pop_all())

    async def _start(self, recorder: Recorder) -> None:
        last = ConfigLast(self._state_dir)
        changes = Changes([], [])
        if self._index == 0:  # one worker tells of a start, not each
            changes = last.changes(self._config)
        await recorder.start(
            config_digest=cfg.digest(self._config),
            ended=endnotes.ended(self._state_dir / "journal"),
            pid=os.getpid(),
            version=importlib.metadata.version("weighbridge"),
            worker=self._index,
            behind=[
                *(told.line(time.time_ns) for told in changes.happenings),
                *(registrations.line(word, time.time_ns) for word in changes.gone),
            ],
        )
        if changes.happenings:
            last.remember(self._config)


def _show_checkpoint(page: Page, writer: str, signed: Signed) -> None:
    page.gauges.checkpoint(writer, signed.head.size + 1)


def _new_writer() -> str:
    return journals.new_writer_id(secrets.token_bytes(journals.WRITER_RANDOM_BYTES))


def _dead(on_dead: Callable[[], None], error: OSError) -> None:
    _log_failed("journal cannot be written", error)
    on_dead()


def _log_failed(event: str, error: OSError) -> None:
    log(logger, logging.ERROR, event, error=str(error))


def _page_stuck(error: OSError) -> None:
    _log_failed("metrics page cannot grow", error)
