"""A run of the close: over the journals of a configuration, with its prices, into where its closes are kept.

<state_dir>/closing/<run>/     what is made and fetched for a run, with a lock; of one that died the next removes it
"""

import asyncio
import contextlib
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from backends.catalog import family_of
from gateway.configuration import config_load, price_books, pricing_config, shared_costs_config
from gateway.configuration.archives import archive_of, objects_of
from gateway.configuration.config import Config
from gateway.configuration.config_load import Place
from metering.cost import close_sources, shared_costs
from metering.cost.allocation import Method, Sharing
from metering.cost.close_hour import Price, Terms
from metering.cost.close_manifest import Manifest, Reason, month_hours, month_of
from metering.cost.close_sources import Sources
from metering.cost.closes import Closes
from metering.cost.closing import Closing, Rules, Told
from metering.cost.hours import PaidHour
from metering.cost.price_book import PriceBook
from metering.cost.work_units import WorkUnits
from metering.journal.journal import LOCK, lock_if_free
from metering.ledger.embedded import running_url
from metering.ledger.store import Store, StoreUnavailable
from metering.record import Host
from metering.units import NS_PER_HOUR, NS_PER_S

RECHECK_HOURS = 45 * 24
"""How far back a run looks for closed hours of which more is known by now."""
_NS_PER_MINUTE = 60 * NS_PER_S


class Found(NamedTuple):
    """What a run has found. closed: in order, with a look into the running hour last, if one was asked for.

    waiting: hours that are over and wait for journals, with these; behind: those that waited too long already.
    """

    closed: list[Manifest]
    waiting: dict[int, list[str]]
    behind: int


def place_of(config: Config) -> Place:
    """What a run needs of a resolved configuration."""
    return Place(**{name: getattr(config, name) for name in Place.__struct_fields__})


def closes_of(where: Place) -> Closes:
    """Where this place's closed hours are. Connects to nothing yet."""
    return Closes(objects_of(pathlib.Path(where.state_dir), where.journal))


def run(
    where: Place,
    *,
    period: range | None,
    now: bool,
    now_ns: int,
    made_by: str,
    tell: Callable[[Told], None],
    note: Callable[[str], None],
    recheck: bool = True,
) -> Found:
    """Close what can be closed. period: hours since 1970; None: all since the last close, and what is known more of.

    recheck: look at closed hours again. now: look into the running hour too. now_ns: wall clock. tell: told before
    anything is put. note: told what a person should know.
    Raises OSError, ArchiveError, FactsError, CloseFileError, ConfigErrors, and what `tell` does.
    """
    state_dir = pathlib.Path(where.state_dir)
    archive = archive_of(where.journal)
    closes = closes_of(where)
    this_hour = now_ns // NS_PER_HOUR
    with _work_directory(state_dir) as work:
        if period is not None:
            period = _known(period, close_sources.first_ns(state_dir, archive))
        else:
            period = _period(state_dir, closes, work, where, this_hour, recheck=recheck)
        hours = range(period.start, min(period.stop, this_hour))
        read = range(hours.start, max(hours.stop, this_hour + 1)) if now else hours
        if not read:
            return Found([], {}, 0)
        closing = Closing(
            Sources(state_dir, archive, _below(work, "sources"), read),
            closes,
            rules(where, price_books.load(where.prices, objects_of(state_dir, where.journal))),
            read,
            now_ns=now_ns,
            made_by=made_by,
            registered=_registered(where, state_dir, note),
        )
        due = [one for one in closing.due() if one.hour in hours]
        closed = list(closing.close(due, tell, work))
        if now:
            tell(Told(Reason.NOW, (this_hour,)))
            closed.append(closing.look(this_hour, work))
        there = closes.numbers(hours)
    waiting = {hour: closing.waits_for(hour) for hour in hours if hour not in there}
    late_ns = where.allocation.late_minutes * _NS_PER_MINUTE
    behind = sum((hour + 1) * NS_PER_HOUR + late_ns <= now_ns for hour in waiting)
    return Found(closed, waiting, behind)


def hosts(where: Place, hours: range) -> list[Host]:
    """What the servers of these hours were found to be. Raises OSError, ArchiveError, FactsError."""
    state_dir = pathlib.Path(where.state_dir)
    with _work_directory(state_dir) as work:
        return Sources(state_dir, archive_of(where.journal), _below(work, "sources"), hours).hosts()


def rules(where: Place, book: PriceBook) -> Rules:
    """How hours are closed, by the configuration."""

    def price(paid: PaidHour) -> Price | None:
        facts = paid.facts
        if facts.instance_type is None:
            return None
        at_ns = paid.hour * NS_PER_HOUR
        found = book.instance_price(facts.instance_type, facts.region, facts.purchase_option, at_ns)
        return None if found is None else Price(found.uusd_per_hour, found.source, found.date)

    catalog = config_load.catalog_of(where.instance_types)
    units = pricing_config.work_units(where.models)

    def family(name: str) -> str:
        return catalog[name].family if name in catalog else family_of(name)

    def weights(model: str, instance_type: str | None, at_ns: int) -> WorkUnits:
        return units.at(model, instance_type, family(instance_type) if instance_type else None, at_ns)

    allocation = where.allocation
    return Rules(
        terms=Terms(
            method=Method(allocation.method),
            sharing=Sharing(allocation.sharing),
            price=price,
            family=family,
            weights=weights,
        ),
        prices=book.digest,
        late_ns=allocation.late_minutes * _NS_PER_MINUTE,
        shared=functools.partial(shared_costs.rows, shared_costs_config.shared_costs(where.shared_costs)),
    )


def _period(
    state_dir: pathlib.Path,
    closes: Closes,
    work: pathlib.Path,
    where: Place,
    this_hour: int,
    *,
    recheck: bool,
) -> range:
    """From the first hour that is not closed, or as far back as closed ones are looked at again, up to now."""
    closed = closes.numbers(range(this_hour))
    if closed:
        first_open = next(hour for hour in range(min(closed), this_hour + 1) if hour not in closed)
        first = min(first_open, this_hour - RECHECK_HOURS) if recheck else first_open
        return range(max(min(closed), first), this_hour)
    archive = archive_of(where.journal)
    first_ns = close_sources.first_ns(state_dir, archive)
    if first_ns is None:
        return range(this_hour, this_hour)
    first = first_ns // NS_PER_HOUR
    month = month_hours(month_of(first))
    told = Sources(state_dir, archive, _below(work, "first"), range(month.start, this_hour)).told()
    launched = [one.line.launched_ns // NS_PER_HOUR for one in told if one.line.launched_ns is not None]
    return range(max(month.start, min([first, *launched])), this_hour)


def _known(period: range, first_ns: int | None) -> range:
    """The hours of a period from the month on in which the first line was made: of those before nothing is known."""
    if first_ns is None:
        return range(period.start, period.start)
    return range(max(period.start, month_hours(month_of(first_ns // NS_PER_HOUR)).start), period.stop)


def _registered(where: Place, state_dir: pathlib.Path, note: Callable[[str], None]) -> dict[str, int]:
    """Writers that the store knows as open, and when they were last stated to be. Empty without a store."""
    configured = config_load.redis_url(where.redis)
    url = configured or running_url(state_dir)
    if url is None:
        return {}
    try:
        return asyncio.run(_open_writers(url))
    except StoreUnavailable as error:
        if configured is not None:
            note(f"the store cannot be asked which writers there are: {error.reason}")
        return {}


async def _open_writers(url: str) -> dict[str, int]:
    async with Store(url) as store:
        found = await store.writers()
    return {name: one.seen_ns for name, one in found.items() if one.state == "open"}


@contextlib.contextmanager
def _work_directory(state_dir: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory of this run alone. Those of runs that died are removed. Raises OSError."""
    root = _below(state_dir, "closing")
    for left in root.iterdir():
        with contextlib.suppress(FileNotFoundError), lock_if_free(left / LOCK) as is_dead:
            if is_dead:
                shutil.rmtree(left, ignore_errors=True)
    made = pathlib.Path(tempfile.mkdtemp(dir=root))
    try:
        with lock_if_free(made / LOCK):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _below(directory: pathlib.Path, name: str) -> pathlib.Path:
    path = directory / name
    path.mkdir(parents=True, exist_ok=True)
    return path
