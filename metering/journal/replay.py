"""Folding a writer's directory again: from the marks in the store to its end, for many tenants at once. Pure.

One reading serves all tenants that are behind. Lines up to a tenant's mark are passed over; the record
at the mark must be the one the mark names, or the store has folded another directory of that name (a
copy that was closed elsewhere): FORK, and nothing of that tenant is applied.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from metering.ledger.ledger import (
    START,
    Batch,
    Done,
    Gap,
    Mark,
    Posted,
    Posting,
    Refused,
    Reply,
    batch,
    mark,
    posting,
)
from metering.record import Billed


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that can't go on by itself.

    reason: FORK, ARCHIVED, or the store's refusal (TYPE, FORM, RANGE); where: the mark, or the key or field.
    """

    tenant: str
    writer: str
    reason: str
    where: str


class Trimmed(NamedTuple):
    """The lines of a directory that are in the archive alone: those up to `last_seq`.

    marks: of each tenant's last record among them; None: that is not known.
    """

    last_seq: int = 0
    marks: Mapping[str, Mark] | None = {}

    def stops(self, tenant: str, at: Mark) -> Literal["", "ARCHIVED", "FORK"]:
        """Why a tenant that is there in the store can't go on with the lines that are here; "": it can.

        A mark among those that are here is not judged.
        """
        if at.seq > self.last_seq:
            return ""
        if self.marks is None:
            return "" if at.seq == self.last_seq else "ARCHIVED"
        last = self.marks.get(tenant, START)
        if at == last:
            return ""
        return "ARCHIVED" if at.seq < last.seq else "FORK"


NOTHING = Trimmed()


def after_seq(marks: Iterable[Mark]) -> int:
    """Read from above this seq: the earliest mark's own record is the first to be met."""
    return max(0, min((at.seq for at in marks), default=0) - 1)


class Replay:
    """One reading of a directory's records, in order, from above `after_seq` of its marks.

    marks: where each tenant is in the store; other tenants are left alone, or `met` later.
    trimmed: of the directory, asked for once the reading has begun: what is deleted here meanwhile stops a tenant that
    needed it, and is never passed over.

    Afterwards each tenant is in one of: `at` (folded up to there), `again` (the store has moved away:
    read once more from that mark), `stopped`. fell: the store fell behind what it had acknowledged
    meanwhile, so others' records are lost as well.
    """

    def __init__(self, writer: str, marks: Mapping[str, Mark], *, trimmed: Trimmed = NOTHING) -> None:
        self.writer = writer
        self.at: dict[str, Mark] = {}
        self.again: dict[str, Mark] = {}
        self.fell = False
        self.stopped: dict[str, Stopped] = {}
        self._trimmed = trimmed
        self._unmet: set[str] = set()
        for tenant, at in marks.items():
            self.meet(tenant, at)

    def meet(self, tenant: str, at: Mark | Refused) -> None:
        """Take in where a tenant is in the store, before its first record is read."""
        if isinstance(at, Refused):
            self.at[tenant] = START
            self._stop(tenant, at.reason, at.where)
            return
        self.at[tenant] = at
        if reason := self._trimmed.stops(tenant, at):
            self._stop(tenant, reason, str(at))
        elif at.seq > self._trimmed.last_seq:
            self._unmet.add(tenant)

    def cut(self, records: Iterable[tuple[Billed, int, str]]) -> list[Batch]:
        """Take in the next records; return a batch for each tenant that has new ones among them."""
        found: dict[str, list[Posting]] = {}
        for record, seq, leaf in records:
            tenant = record.tenant
            assert tenant is not None
            at = self.at.get(tenant)
            if at is None or seq < at.seq:
                continue
            if seq == at.seq and mark(seq, leaf) == at:
                self._unmet.discard(tenant)
            elif seq == at.seq or tenant in self._unmet:
                self._fork(tenant)
            else:
                found.setdefault(tenant, []).append(posting(record, seq, leaf))
        return [batch(tenant, self.writer, self.at[tenant], postings) for tenant, postings in found.items()]

    def answered(self, batch: Batch, reply: Reply) -> None:
        """Take in the store's answer to a batch of the last `cut`."""
        tenant = batch.tenant
        match reply:
            case Posted():
                self.at[tenant] = batch.last
            case Done(at) if at == batch.last:
                self.at[tenant] = at
            case Done(at):  # somebody else has folded more; that must have been of this directory
                self.at[tenant] = at
                self._unmet.add(tenant)
                if at.seq == batch.last.seq:
                    self._fork(tenant)
            case Gap(at):
                self.fell |= at.seq < batch.prev.seq
                del self.at[tenant]
                self.again[tenant] = at
            case _:
                self._stop(tenant, reply.reason, reply.where)

    def end(self) -> None:
        """There are no more records: a mark that was not met is none of this directory's."""
        for tenant in sorted(self._unmet & self.at.keys()):
            self._fork(tenant)

    def _fork(self, tenant: str) -> None:
        self._stop(tenant, "FORK", str(self.at[tenant]))

    def _stop(self, tenant: str, reason: str, where: str) -> None:
        del self.at[tenant]
        self._unmet.discard(tenant)
        self.stopped[tenant] = Stopped(tenant=tenant, writer=self.writer, reason=reason, where=where)
