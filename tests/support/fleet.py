"""Journals of a small fleet, and a close of them: registrations, calls that hold slots, ticks."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metering import record
from metering.archive.archive import Archive
from metering.archive.objects import LocalObjects, Objects
from metering.cost.allocation import Method, Sharing
from metering.cost.close_hour import Price, Terms
from metering.cost.close_manifest import Manifest
from metering.cost.close_sources import Sources
from metering.cost.closes import Closes
from metering.cost.closing import NOBODY, Closing, Rules, Told
from metering.cost.work_units import WorkUnitTable
from metering.record import AttemptOutcome, AttemptRecord, Instance
from metering.units import NS_PER_HOUR, NS_PER_S
from tests.support.journals import AT_NS, WRITER, Make, admitted, call, start, write_directory

HOUR = AT_NS // NS_PER_HOUR
MINUTE_NS = 60 * NS_PER_S
UUSD_PER_HOUR = 12_981_270
PRICE = Price(UUSD_PER_HOUR, "list", "2026-07-20")


def registration(at_ns: int, state: str = "ready", **fields: Any) -> Make:
    """All 24 units of i-1, by the configuration."""
    values: dict[str, Any] = {
        "backend": "inf2-a", "instance_id": "i-1", "instance_type": "inf2.48xlarge", "model": "llama",
        "region": "us-east-1", "simulated": True, "slots": 4, "source": "config", "units": 24, "units_total": 24,
    } | fields  # fmt: skip
    return lambda seq, prev: record.Registration(at_ns=at_ns, prev=prev, seq=seq, state=state, **values)


def busy(
    call_id: str,
    from_ns: int,
    ns: int,
    *,
    backend: str | None = "inf2-a",
    failed: str | None = None,
    **fields: Any,
) -> list[Make]:
    """A call that holds a slot of a backend for so long; failed: a backend that it tried before, as long."""
    end_ns = from_ns + ns
    attempts = [
        AttemptRecord(
            backend=name,
            ended_ns=end_ns,
            outcome=AttemptOutcome.COMPLETED if name == backend else AttemptOutcome.FAILED,
            slot_ns=ns,
            started_ns=from_ns,
        )
        for name in (failed, backend)
        if name is not None
    ]
    values = {
        "attempts": tuple(attempts),
        "backend": backend,
        "finished_ns": end_ns,
        "instances": (Instance(id="i-1", type="inf2.48xlarge", units=24, units_total=24),),
        "simulated": True,
        "slot_ns": ns,
    }
    return [
        admitted(call_id, at_ns=from_ns),
        call(call_id, at_ns=end_ns, admitted_ns=from_ns, **(values | fields)),
    ]


def in_time(makes: Iterable[tuple[int, Make]]) -> list[Make]:
    """Makers in the order of their moments."""
    return [make for _, make in sorted(makes, key=lambda one: one[0])]


def terms(method: Method = Method.SLOT_TIME, sharing: Sharing = Sharing.NONE, **fields: Any) -> Terms:
    """Everything costs PRICE."""
    values: dict[str, Any] = {
        "price": lambda paid: PRICE,
        "family": lambda name: name.partition(".")[0],
        "weights": lambda model, instance_type, at_ns: WorkUnitTable().at(model, None, None, at_ns),
    } | fields
    return Terms(method, sharing, **values)


class Site:
    """A state directory, and where its closes are kept."""

    def __init__(self, root: pathlib.Path, objects: Objects | None = None) -> None:
        self.root = root
        self.archive = Archive(objects) if objects is not None else None
        self.closes = Closes(objects or LocalObjects(root))
        self.told: list[Told] = []
        self._works = 0

    def journal(self, makes: Sequence[Make], *, writer: str = WRITER, at_ns: int = AT_NS) -> pathlib.Path:
        """The journal of one writer, as a process leaves it that has died, or still lives. at_ns: its start."""
        return write_directory(
            self.root / "journal", [start(writer=writer, at_ns=at_ns), *makes], writer=writer
        )

    def closing(
        self,
        now_ns: int,
        hours: range = range(HOUR, HOUR + 3),
        *,
        registered: Mapping[str, int] = NOBODY,
        **rules: Any,
    ) -> Closing:
        values = {"terms": terms(), "prices": "sha256:book", "late_ns": 15 * MINUTE_NS} | rules
        self._works += 1
        work = self.root / "work" / str(self._works)
        work.mkdir(parents=True)
        sources = Sources(self.root, self.archive, work, hours)
        return Closing(
            sources,
            self.closes,
            Rules(**values),
            hours,
            now_ns=now_ns,
            made_by="cli:test",
            registered=registered,
        )

    def close(self, now_ns: int, hours: range = range(HOUR, HOUR + 3), **rules: Any) -> list[Manifest]:
        """Close what can be closed."""
        closing = self.closing(now_ns, hours, **rules)
        return list(closing.close(closing.due(), self.told.append, self.root / "work"))
