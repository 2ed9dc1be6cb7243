"""What an `event` line tells: things besides calls that an auditor asks after. Pure.

One function for each topic, so that the names in `data` are the same wherever such a line is made;
deploy/reference/journal.md has them all. A value is text, and bounded: what a client or a file may make
long is cut here. A name that does not apply is left out; there are no empty ones.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from metering.audit.keyring import Key, What
from metering.record import DirectoryChange, Entry, Event

TEXT_CHARACTERS_MAX = 1024
"""Of one value: two of them and the rest stay below RECORD_BYTES_MAX, at six bytes of JSON for a character."""

WRITERS_MAX = 50
"""Names of writers that fit into a value."""
_MORE_CHARACTERS = 24
"""Room for the count of what did not fit."""

Exported = Literal[
    "csv", "lines", "pack", "focus-split", "focus-chargeback", "csv-allocated", "json", "parquet", "statement"
]
"""What leaves the gateway: `csv` are the ledger's estimates, from `focus-split` on closed hours."""

CONTENT_DELETED = "content_deleted"
"""The topic that explains why content which a record speaks of is not there (metering/capture/content.py)."""

Face = Literal["audit", "finance", "admin", "api"]
"""Faces that are looked into with a scope of their own; `api`: what clients ask besides calls."""


class Happening(NamedTuple):
    """An event that has no place in a journal yet. actor, topic, data: as in record.Event."""

    topic: str
    actor: str | None
    data: dict[str, str]

    def line(self, clock: Callable[[], int]) -> Callable[[int, str], Event]:
        """Makes its line at the flush. clock: wall clock in nanoseconds since 1970 (UTC)."""

        def make(seq: int, prev: str) -> Event:
            return Event(
                actor=self.actor, at_ns=clock(), data=self.data, prev=prev, seq=seq, topic=self.topic
            )

        return make


class Changed(NamedTuple):
    """A change of the directory that has no place in a journal yet. Fields as in record.DirectoryChange."""

    actor: str
    change: str
    entry: Entry
    request_id: str | None

    def line(self, clock: Callable[[], int]) -> Callable[[int, str], DirectoryChange]:
        """Makes its line at the flush. clock: as of a happening."""

        def make(seq: int, prev: str) -> DirectoryChange:
            return DirectoryChange(
                actor=self.actor,
                at_ns=clock(),
                change=self.change,
                entry=self.entry,
                prev=prev,
                request_id=self.request_id,
                seq=seq,
            )

        return make


def configured(*, digest: str, before: str | None, changed: Iterable[str]) -> Happening:
    """A start found another configuration than the last start of this state directory.

    digest, before: "sha256:…" as in `start`; before None: there was no other. changed: paths of keys.
    """
    return _happening("config", digest=digest, before=before, changed=_listed(changed))


def repriced(
    *, what: Literal["rate_card", "instance_price"], of: str, before: str | None, after: str | None
) -> Happening:
    """A price of the configuration changed. of: what it prices, and since when; before, after: the entry as JSON;
    None: none."""
    return _happening("prices", what=what, of=of, before=before, after=after)


def prices_imported(
    *, actor: str, version: int, file: str, sha256: str, added: int, before: str, after: str
) -> Happening:
    """Prices of instances are about to be imported. sha256: of the file, hex; before, after: PriceBook.digest of what
    has been imported."""
    return _happening(
        "prices", actor, what="import", version=str(version), file=file, sha256=sha256, added=str(added),
        before=before, after=after,
    )  # fmt: skip


def exported(
    *, actor: str, what: Exported, period: str, rows: int, sha256: str, to: str,
    tenant: str | None = None,
) -> Happening:  # fmt: skip
    """Figures or lines left the gateway. period: "<from>/<to>"; rows: of the file; sha256: of its bytes, hex."""
    return _happening(
        "export", actor, what=what, period=period, rows=str(rows), sha256=sha256, to=to, tenant=tenant
    )


def hours_closed(*, actor: str | None, reason: str, first: str, last: str, hours: int) -> Happening:
    """So many hours, from the first to the last one (their text), are about to be closed. reason: of the revisions."""
    return _happening("close", actor, what="hours", reason=reason, first=first, last=last, hours=str(hours))


def month_closed(*, actor: str, month: str, hours: int, bills: Iterable[str]) -> Happening:
    """A person is about to close a month of so many hours. bills: SHA-256 of each; none: without a bill."""
    return _happening("close", actor, what="month", month=month, hours=str(hours), bills=_listed(bills))


def audit_read(*, actor: str, method: str, path: str, status: int, request_id: str) -> Happening:
    """Somebody looked into the audit face. path: with its query; status: of the answer."""
    return _look("audit_read", actor, method, path, status, request_id)


def finance_read(*, actor: str, method: str, path: str, status: int, request_id: str) -> Happening:
    """Somebody looked into the finance face. As above."""
    return _look("finance_read", actor, method, path, status, request_id)


def administered(*, actor: str, method: str, path: str, status: int, request_id: str) -> Happening:
    """Somebody read or changed something by the admin face, or was refused to. As above."""
    return _look("admin", actor, method, path, status, request_id)


def directory_changed(line: DirectoryChange) -> Event:
    """A `directory` line as an event, for who lists what happened besides calls."""
    entry = line.entry
    told = _happening(
        "directory", line.actor, change=line.change, kind=entry.kind, name=entry.name, version=str(entry.version),
        revoked="true" if entry.revoked else None, entry=bytes(entry.data).decode(), request_id=line.request_id,
    )  # fmt: skip
    return Event(
        actor=told.actor, at_ns=line.at_ns, data=told.data, prev=line.prev, seq=line.seq, topic=told.topic
    )


def sign_in_refused(*, actor: str | None, face: Face, status: int, count: int) -> Happening:
    """A face refused a key. actor: the key's id, if it is known; count: how often in this second."""
    return _happening("sign_in_refused", actor, face=face, status=str(status), count=str(count))


def retired(
    *, where: Literal["local", "archive"], writers: Iterable[str], older_than_ns: int
) -> list[Happening]:
    """Journals are about to be deleted, since their last line is older than `retention_days` allow. All are named: an
    event for each WRITERS_MAX."""
    ordered = sorted(writers)
    return [
        _happening(
            "retention",
            where=where,
            writers=", ".join(ordered[at : at + WRITERS_MAX]),
            older_than_ns=str(older_than_ns),
        )
        for at in range(0, len(ordered), WRITERS_MAX)
    ]


def key_changed(*, actor: str | None, what: What, key: Key) -> Happening:
    """A key that signs checkpoints was made, replaced or stolen."""
    until = None if key.until_ns is None else str(key.until_ns)
    return _happening(
        "key", actor, what=what, key=key.id, vkey=key.vkey, from_ns=str(key.from_ns), until_ns=until
    )


def key_missing() -> Happening:
    """This writer has no key to sign with: there is no checkpoint until it has one."""
    return _happening("key", what="missing")


def key_found(key_id: str) -> Happening:
    """This writer has a key again, which signs all of its journal. key_id: 8 hex digits."""
    return _happening("key", what="found", key=key_id)


def unwritten(kinds: Mapping[str, int]) -> Happening:
    """Lines that no journal took, or had room for, since this worker last told of such. kinds: how many of each."""
    return _happening("unwritten", **{kind: str(count) for kind, count in sorted(kinds.items())})


def ledger_rebuilt(*, actor: str, tenant: str | None) -> Happening:
    """All journals are about to be folded in a new epoch. tenant: whose keys are deleted first; None: nobody's."""
    return _happening("ledger", actor, what="rebuild", tenant=tenant)


def writers_closed(*, actor: str, writers: Iterable[str]) -> Happening:
    """Somebody says that these writers, of another host, are dead: their journals are about to be closed."""
    return _happening("ledger", actor, what="writer_is_dead", writers=_listed(writers))


def clock_set(*, by_ms: int) -> Happening:
    """The wall clock was set, forward or (negative) back, while this writer ran."""
    return _happening("clock", by_ms=str(by_ms))


def forgotten(*, actor: str, tenant: str, key: str) -> Happening:
    """A tenant's key of digests was deleted. key: its id, as the records' `digests` have it."""
    return _happening("forget", actor, tenant=tenant, key=key)


def content_deleted(
    *, actor: str | None, where: str, tenant: str, reason: Literal["age", "erased"], until_ns: int, files: int
) -> Happening:
    """Kept content of a tenant is about to be deleted: of calls that ended before `until_ns` (wall clock).

    where: `local` or `archive`; files: how many.
    """
    return _happening(
        CONTENT_DELETED,
        actor,
        where=where,
        tenant=tenant,
        reason=reason,
        until_ns=str(until_ns),
        files=str(files),
    )


def reconciled(*, actor: str, month: str, bill: str, billed: str, allocated: str, hours: int) -> Happening:
    """Closed hours are about to get what a bill says. bill: its SHA-256, hex; billed, allocated: in USD, as text.

    hours: how many get a new revision.
    """
    return _happening(
        "reconcile",
        actor,
        month=month,
        bill=bill,
        billed_usd=billed,
        allocated_usd=allocated,
        hours=str(hours),
    )


def budget_passed(
    *, tenant: str, scope: str, window: str, budget: str, hard: bool, percent: int, spent: str
) -> Happening:
    """A threshold of a budget was passed: so many percent of it are spent. scope: as limits name it; budget, spent: in
    USD, as text; window: `yyyymm`, `yyyymmdd` or `yyyymmddhh`."""
    return _happening(
        "budget", tenant=tenant, scope=scope, window=window, budget_usd=budget, kind="hard" if hard else "soft",
        percent=str(percent), spent_usd=spent,
    )  # fmt: skip


def _look(topic: str, actor: str, method: str, path: str, status: int, request_id: str) -> Happening:
    return _happening(topic, actor, method=method, path=path, status=str(status), request_id=request_id)


def _happening(topic: str, actor: str | None = None, /, **data: str | None) -> Happening:
    known: Mapping[str, str] = {name: _cut(value) for name, value in data.items() if value}
    return Happening(topic, actor, dict(known))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _listed(names: Iterable[str]) -> str:
    """Names, sorted, with commas between them; those that do not fit are counted."""
    ordered = sorted(names)
    fitting, characters = 0, 0
    for name in ordered:
        characters += len(name) + 2
        if characters > TEXT_CHARACTERS_MAX - _MORE_CHARACTERS:
            break
        fitting += 1
    more = len(ordered) - fitting
    return ", ".join(ordered[:fitting]) + (f", and {more} more" if more else "")
