"""Folding a writer's directory again: from the marks in the store to its end, for many tenants at once. Pure.

One reading serves all tenants that are behind. Lines up to a tenant's mark are passed over; the record
at the mark must be the one the mark names, or the store has folded another directory of that name (a
copy that was closed elsewhere): FORK, and nothing of that tenant is applied.
"""

from collections.abc import Iterable, Mapping

import msgspec

from metering.ledger import (
    START,
    Batch,
    Done,
    Gap,
    Mark,
    Posted,
    Posting,
    Reply,
    batch,
    mark,
    posting,
)
from metering.record import CallRecord, Line


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that can't go on by itself.

    reason: FORK, or the store's refusal (TYPE, FORM, RANGE); where: the mark, or the key or field.
    """

    tenant: str
    writer: str
    reason: str
    where: str


class Replay:
    """One reading of a directory's lines, in order, from above `after_seq`.

    marks: where each tenant is in the store; other tenants are left alone.

    Afterwards each tenant is in one of: `at` (folded up to there), `again` (the store has moved away:
    read once more from that mark), `stopped`. fell: the store fell behind what it had acknowledged
    meanwhile, so others' records are lost as well.
    """

    def __init__(self, writer: str, marks: Mapping[str, Mark]) -> None:
        assert marks
        self.writer = writer
        self.at = dict(marks)
        self.again: dict[str, Mark] = {}
        self.fell = False
        self.stopped: dict[str, Stopped] = {}
        self._unmet = {tenant for tenant, at in marks.items() if at != START}

    @property
    def after_seq(self) -> int:
        """Read from above this seq: the earliest mark's own record is the first to be met."""
        return max(0, min(at.seq for at in self.at.values()) - 1)

    def cut(self, lines: Iterable[tuple[Line, int, str]]) -> list[Batch]:
        """Take in the next lines; return a batch for each tenant that has records in them."""
        found: dict[str, list[Posting]] = {}
        for line, seq, leaf in lines:
            if not isinstance(line, CallRecord):
                continue
            tenant = line.tenant
            at = self.at.get(tenant)
            if at is None or seq < at.seq:
                continue
            if seq == at.seq and mark(seq, leaf) == at:
                self._unmet.discard(tenant)
            elif seq == at.seq or tenant in self._unmet:
                self._fork(tenant)
            else:
                found.setdefault(tenant, []).append(posting(line, seq, leaf))
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
        """There are no more lines: a mark that was not met is none of this directory's."""
        for tenant in sorted(self._unmet & self.at.keys()):
            self._fork(tenant)

    def _fork(self, tenant: str) -> None:
        self._stop(tenant, "FORK", str(self.at[tenant]))

    def _stop(self, tenant: str, reason: str, where: str) -> None:
        del self.at[tenant]
        self._unmet.discard(tenant)
        self.stopped[tenant] = Stopped(tenant=tenant, writer=self.writer, reason=reason, where=where)
