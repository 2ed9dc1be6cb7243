"""How a ledger stands: its epoch, its tenants, its writers, and what it lacks of the journals that are here.

Reads only. A live journal is read as far as it is written, so its newest records count as lag.
"""

import asyncio
import collections
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from metering.ledger import epochs
from metering.ledger.epochs import Meta, Writer
from metering.ledger.folder import Directory
from metering.ledger.ledger import Mark, Refused, mark
from metering.ledger.store import EVICTION_WANTED, Store
from metering.pages import families, metrics
from metering.pages.pages import PageError


class TenantStatus(msgspec.Struct, frozen=True, kw_only=True):
    """unfolded: the writers that keep it from being ready, by name."""

    tenant: str
    ready: bool
    unfolded: tuple[str, ...]
    epoch: str
    floor: str


class WriterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """here: its journal is among those that were read. folded: in this epoch, all but `behind`."""

    writer: str
    host: str
    state: str
    here: bool
    folded: bool
    behind: tuple[str, ...]
    seq: int


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of the writers of one host, this one's or another's.

    open, closed, gone: writers; unfolded: of them, those not folded in this epoch, or behind. seen_ns: the newest
    statement of any, wall clock of that host.
    """

    host: str
    open: int
    closed: int
    gone: int
    unfolded: int
    seen_ns: int


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's records of one journal that is here, where the ledger has not all of them, or something else.

    lag_records: after the mark; reason: why it can't go on (FORK, ARCHIVED, FORM, TYPE); "" if it will.
    """

    tenant: str
    writer: str
    lag_records: int
    mark: str
    reason: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """eviction: the store's maxmemory-policy; None where it may not be asked. hosts: all gateways of this store.

    unwritten: lines, by kind, that no journal here took; they are in no ledger. None: the pages can't be read.
    """

    epoch: str
    eviction: str | None
    tenants: tuple[TenantStatus, ...]
    writers: tuple[WriterStatus, ...]
    streams: tuple[StreamStatus, ...]
    hosts: tuple[HostStatus, ...]
    unwritten: Mapping[str, int] | None

    @property
    def sound(self) -> bool:
        """Is every tenant ready, nothing stopped, and nothing evicted?"""
        return (
            all(tenant.ready for tenant in self.tenants)
            and not any(stream.reason for stream in self.streams)
            and self.eviction in (None, EVICTION_WANTED)
        )


async def look(
    store: Store,
    directories: Sequence[Directory],
    tenants: Collection[str],
    unwritten: Mapping[str, int] | None = None,
) -> Status:
    """tenants: to be shown though neither store nor journals may know them; unwritten: as it is shown.

    directories: that are here; without one the store alone is looked at. Raises StoreUnavailable, OSError.
    """
    streams: list[StreamStatus] = []
    known = set(tenants) | set(await store.tenants())
    for directory in directories:
        met = await asyncio.to_thread(_tenants_of, directory)
        known |= met
        if met:
            marks = await store.marks({tenant: [directory.writer] for tenant in sorted(met)})
            found = {tenant: at for (tenant, _), at in marks.items()}
            streams += await asyncio.to_thread(_compare, directory, found)
    epoch = await store.epoch()
    metas = await store.metas(sorted(known))
    writers = await store.writers()
    here = {directory.writer for directory in directories}
    return Status(
        epoch=epoch,
        eviction=await store.eviction(),
        tenants=tuple(_tenant(name, epoch, metas.get(name, Meta()), writers) for name in sorted(known)),
        writers=tuple(
            WriterStatus(
                writer=name,
                host=one.host,
                state=one.state,
                here=name in here,
                folded=one.epoch == epoch,
                behind=one.behind,
                seq=one.seq,
            )
            for name, one in sorted(writers.items())
        ),
        streams=tuple(streams),
        hosts=tuple(_hosts(epoch, writers)),
        unwritten=unwritten,
    )


def unwritten_of(pages_dir: pathlib.Path) -> Mapping[str, int] | None:
    """Lines by kind that no journal took, of the living and the dead; None: there are no pages, or none to be read."""
    try:
        totals = metrics.scrape(pages_dir).totals
    except PageError:
        return None
    found = (one for one in totals if one.family == families.JOURNAL_UNWRITTEN.name)
    return {one.labels[0]: totals[one][0] for one in sorted(found)}


def _hosts(epoch: str, writers: Mapping[str, Writer]) -> Iterator[HostStatus]:
    by_host: dict[str, list[Writer]] = {}
    for one in writers.values():
        by_host.setdefault(one.host, []).append(one)
    for host, held in sorted(by_host.items()):
        states = collections.Counter(one.state for one in held)
        yield HostStatus(
            host=host,
            open=states["open"],
            closed=states["closed"],
            gone=states["gone"],
            unfolded=sum(one.state != "gone" and (one.epoch != epoch or bool(one.behind)) for one in held),
            seen_ns=max(one.seen_ns for one in held),
        )


def _tenant(name: str, epoch: str, meta: Meta, writers: dict[str, Writer]) -> TenantStatus:
    return TenantStatus(
        tenant=name,
        ready=epochs.is_ready(epoch, meta),
        unfolded=tuple(epochs.unfolded(epoch, writers, name)),
        epoch=meta.epoch,
        floor=meta.floor,
    )


def _tenants_of(directory: Directory) -> set[str]:
    met = {record.tenant for record, _, _ in directory.billed() if record.tenant is not None}
    return met | set(directory.trimmed.marks or {})


def _compare(directory: Directory, marks: dict[str, Mark | Refused]) -> Iterable[StreamStatus]:
    """Where each tenant's mark is in this directory; those that are at its end are left out."""
    after = dict.fromkeys(marks, 0)
    trimmed = directory.trimmed
    met = {tenant for tenant, at in marks.items() if isinstance(at, Mark) and at.seq <= trimmed.last_seq}
    for record, seq, leaf in directory.billed():
        at = marks.get(record.tenant or "")
        if record.tenant is None or not isinstance(at, Mark):
            continue
        if seq > at.seq:
            after[record.tenant] += 1
        elif mark(seq, leaf) == at:
            met.add(record.tenant)
    found = []
    for tenant, at in sorted(marks.items()):
        reason = ""
        if isinstance(at, Refused):
            reason = at.reason
        elif not (reason := trimmed.stops(tenant, at)) and tenant not in met:
            reason = "FORK"
        if reason or after[tenant]:
            where = at.where if isinstance(at, Refused) else str(at)
            found.append(
                StreamStatus(
                    tenant=tenant,
                    writer=directory.writer,
                    lag_records=after[tenant],
                    mark=where,
                    reason=reason,
                )
            )
    return found
