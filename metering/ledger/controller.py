"""The control at work: journals, pages and store are read at one cut, and compared (metering/ledger/control.py).

What a journal says up to a cut is kept and gone on from at the next look. What a directory that is complete
says does not change: it is kept in files (metering/ledger/control_kept.py), so neither a new process nor the
removal of the directory (once the archive has it) makes it unknown. Lines that are in the archive alone are read
there, where they were not read before.
"""

import asyncio
import csv
import io
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from metering.archive.archive import Archive
from metering.export import export
from metering.export.export import Row
from metering.journal.journal import Directory, directories
from metering.journal.revisits import Revisits
from metering.ledger import control, epochs, ledger
from metering.ledger.control import Counted, Difference, Ledgered
from metering.ledger.control_kept import ControlKept, Past
from metering.ledger.ledger import UNITS, Amounts, Held
from metering.ledger.store import Store
from metering.pages import families, gone, pages
from metering.pages.families import Totals
from metering.pages.pages import PageError
from metering.record import Metered
from metering.units import PICO_USD_PER_USD

_LOOKS_MAX = 100


class Shown(NamedTuple):
    """All metrics pages at one look. upto: of each writer with a page, the seq that it stands for.

    retired: writers that the gone page holds, to their last line.
    """

    totals: Totals
    upto: Mapping[str, int]
    retired: frozenset[str]


class _Journal:
    """One writer's journal, as far as it was read for each pair."""

    def __init__(self) -> None:
        self.ledgered = Ledgered()
        self.counted = Counted()
        self.kept = False
        self.revisits = Revisits()  # while it is written
        self.end: int | None = None  # its last seq, once nothing can be added


class Controller:
    """Compares; one caller at a time. state_dir: whose journals and pages.

    archive: where fronts are that were deleted here; keep: write down what complete directories say.
    """

    def __init__(self, state_dir: pathlib.Path, *, archive: Archive | None = None, keep: bool = True) -> None:
        self._root = state_dir / "journal"
        self._pages = state_dir / "pages"
        self._kept = ControlKept(state_dir)
        self._past = Past()
        self._archive = archive
        self._keeps = keep
        self._journals: dict[str, _Journal] = {}

    async def look(self, store: Store, from_hour: int = 0) -> list[Difference]:
        """All differences now; of the ledger, those from this hour on (since 1970, UTC).

        Raises StoreUnavailable, PageError, ArchiveError, OSError.
        """
        shown = await asyncio.to_thread(shown_by, self._pages)
        held = {tenant: await store.held(tenant, from_hour) for tenant in await store.tenants()}
        epoch, writers = await store.epoch(), await store.writers()
        await asyncio.to_thread(self._read_all, held, shown)
        if self._keeps and from_hour == 0:  # else the floors are not the ledger's own
            await asyncio.to_thread(self._let_go, held, shown)
        return [*self._compare(held, epochs.answered(epoch, writers), shown)]

    @property
    def backends(self) -> dict[str, int]:
        """Tokens, prompt and completion, that each backend made by our records, as of the last look."""
        sums = dict(self._past.backends)
        for journal in self._journals.values():
            for backend, tokens in journal.counted.backends.items():
                sums[backend] = sums.get(backend, 0) + tokens
        return sums

    def _compare(self, held: Mapping[str, Held], known: frozenset[str], shown: Shown) -> Iterator[Difference]:
        ledgered = {writer: journal.ledgered for writer, journal in self._journals.items()}
        for tenant in sorted(held):
            yield from control.journal_ledger(tenant, held[tenant], ledgered, known)
            yield from ledger_export(tenant, held[tenant])
        counted = [
            journal.counted
            for writer, journal in self._journals.items()
            if (writer in shown.upto or writer in shown.retired) and writer not in self._past.writers
        ]
        if shown.retired.issuperset(self._past.writers):  # else the gone page was made again without them
            counted.append(self._past.counted)
        yield from control.journal_metrics(shown.totals, counted)

    def _read_all(self, held: Mapping[str, Held], shown: Shown) -> None:
        found = {directory.writer: directory for directory in directories(self._root)}
        self._past = self._kept.past()
        for writer in sorted(found.keys() | self._kept.writers()):
            if writer not in self._journals:
                self._journals[writer] = self._load(writer)
            cuts = {tenant: one.marks[writer].seq for tenant, one in held.items() if writer in one.marks}
            journal = self._journals[writer]
            if writer in found:
                self._read(found[writer], journal, cuts, shown)
            elif journal.ledgered.after(cuts) is not None:
                del self._journals[writer]  # the store has less than all of it, and what it has is not known

    def _read(self, directory: Directory, journal: _Journal, cuts: Mapping[str, int], shown: Shown) -> None:
        """Go on reading to the cuts: each line serves all that stand before it."""
        writer = directory.writer
        if journal.end is None and directory.complete:
            tail = directory.tail()
            assert tail is not None
            journal.end = tail.seq
        page_cut = shown.upto.get(writer, 0)
        if writer in shown.retired and journal.end is not None:
            page_cut = journal.end
        after_ledgered = journal.ledgered.after(cuts)
        last = max(cuts.values(), default=0) if after_ledgered is not None else 0
        starts = [] if after_ledgered is None else [after_ledgered]
        if journal.counted.seq < page_cut:
            starts.append(journal.counted.seq)
        if starts:
            self._read_on(directory, journal, min(starts), max(page_cut, last), cuts, page_cut)
        # Lines of kinds that are not known here count for nothing, and are not read again for it.
        journal.counted.seq = max(journal.counted.seq, page_cut)
        whole = journal.end == page_cut and journal.ledgered.upto == journal.counted.lasts
        if self._keeps and whole and not journal.kept:
            self._kept.put(writer, journal.counted, journal.ledgered)
            journal.kept = True

    def _read_on(
        self,
        directory: Directory,
        journal: _Journal,
        after_seq: int,
        upto_seq: int,
        cuts: Mapping[str, int],
        page_cut: int,
    ) -> None:
        counted, ledgered = journal.counted, journal.ledgered
        for line, seq, leaf in self._metered(directory, journal, after_seq):
            if seq > upto_seq:
                break
            if counted.seq < seq <= page_cut:
                counted.add(line, seq, leaf)
            if line is not None and line.kind == "call":
                ledgered.add(line, seq, leaf, cuts)
        if after_seq <= ledgered.read:
            ledgered.read = max(ledgered.read, upto_seq)

    def _metered(
        self, directory: Directory, journal: _Journal, after_seq: int
    ) -> Iterator[tuple[Metered | None, int, str]]:
        if self._archive is not None and after_seq < directory.starts_after:
            return self._archive.whole(directory).metered(after_seq)
        if journal.end is None:
            return journal.revisits.metered(directory, after_seq)
        return directory.metered(after_seq)

    # What was read of complete directories

    def _load(self, writer: str) -> _Journal:
        journal = _Journal()
        if (kept := self._kept.load(writer)) is not None:
            journal.counted, journal.ledgered = kept
            journal.kept, journal.end = True, journal.counted.seq
        return journal

    def _let_go(self, held: Mapping[str, Held], shown: Shown) -> None:
        """Add up those that are neither here nor in any hour that the ledger has open, nor named by a mark of it."""
        here = {directory.writer for directory in directories(self._root)}
        marked = {writer for one in held.values() for writer in one.marks}
        past = {
            writer: journal.counted
            for writer, journal in self._journals.items()
            if journal.kept and writer not in here | marked and writer in shown.retired
            if _is_closed(journal.ledgered, held)
        }
        if past:
            self._kept.add_to_past(past.items())
            self._past = self._kept.past()
            for writer in past:
                del self._journals[writer]


def _is_closed(ledgered: Ledgered, held: Mapping[str, Held]) -> bool:
    return all(
        tenant in held and all(account.hour < held[tenant].floor for account in sums)
        for tenant, sums in ledgered.sums.items()
    )


def shown_by(pages_dir: pathlib.Path) -> Shown:
    """All pages of this directory, as a scrape sums them. Raises PageError."""
    for _ in range(_LOOKS_MAX):
        listed = [path for path in pages.files(pages_dir) if path.suffix == pages.SUFFIX]
        dead = gone.load(pages_dir)
        totals, upto = dict(dead.totals), {}
        try:
            for path in listed:
                if path.stem not in dead.writers:
                    page = pages.read(path)
                    upto[page.writer] = page.seq
                    families.merge(totals, families.counters(page.totals))
        except FileNotFoundError:  # it was retired since: the next gone page holds it
            continue
        return Shown(totals, upto, dead.writers)
    raise PageError(f"pages were retired in each of {_LOOKS_MAX} looks")


def ledger_export(tenant: str, held: Held) -> Iterator[Difference]:
    """The ledger against the CSV that is made of it, which is read as finance would read it."""
    text = io.StringIO()
    export.export_csv([Row(tenant, account, tuple(sums)) for account, sums in held.sums.items()], text)
    read: dict[str, Amounts] = {}
    for row in csv.DictReader(io.StringIO(text.getvalue())):
        found = [_pico(row["estimated_usd"]) if unit == "cost_pusd" else int(row[unit]) for unit in UNITS]
        ledger.add(read.setdefault(row["period_start"], [0] * len(UNITS)), found)
    hours: dict[int, Amounts] = {}
    for account, amounts in held.sums.items():
        ledger.add(hours.setdefault(account.hour, [0] * len(UNITS)), amounts)
    for hour, sums in sorted(hours.items()):
        exported = read.get(export.moment_text(hour), [0] * len(UNITS))
        for unit, left, right in zip(UNITS, sums, exported, strict=True):
            if left != right:
                yield Difference(control.LEDGER_EXPORT, unit, tenant, (hour, ""), left, right)


def _pico(usd: str) -> int:
    """A decimal string of 12 places in picodollars."""
    whole, _, places = usd.partition(".")
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * PICO_USD_PER_USD + sign * int(places)
