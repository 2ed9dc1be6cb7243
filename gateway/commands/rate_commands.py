"""`weighbridge rates review`: rate cards from what was measured, as lines to paste, with what they rest on.

The last closed month where it has hours of the model on the hardware, else a published benchmark; nothing is changed.
"""

import argparse
import datetime
import fractions
import importlib.resources
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from backends import benchmarks
from backends.benchmarks import Benchmark
from backends.catalog import Catalog, known_family
from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    flags,
    say,
)
from gateway.configuration import config_load, price_books, pricing_config
from gateway.configuration.archives import objects_of
from gateway.configuration.config import Config, Model
from metering.archive.objects import ArchiveError
from metering.cost import rate_review
from metering.cost.close_files import CloseFileError
from metering.cost.close_manifest import MonthState, month_hours
from metering.cost.closes import Closes
from metering.cost.price_book import ON_DEMAND, InstancePrice, PriceBook
from metering.cost.pricing import RateCard
from metering.cost.rate_review import MICRO_HOURS, Proposal, Yield
from metering.units import PICO_USD_PER_MICRO_USD, usd_text

UTILISATION = fractions.Fraction(6, 10)
_HOURS_MIN = 1
"""Of an instance, used by tenants: less says nothing of a rate."""
_SOURCE_CHARACTERS_MAX = 256


class Basis(NamedTuple):
    """What a proposal rests on. per_hour: work units of the whole instance at capacity; words: for the source."""

    per_hour: fractions.Fraction
    words: str
    more: tuple[str, ...] = ()


class _Measured(NamedTuple):
    """A month's yields; month None: there is none that was closed."""

    month: str | None
    state: str
    yields: Mapping[tuple[str, str], Yield]


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    rates = commands.add_parser("rates", help="Rate cards").add_subparsers(required=True, metavar="command")
    command = add(rates, "review", review)
    command.add_argument("--month", metavar="M", help="as in 2026-11 (default: the last one that was closed)")
    command.add_argument("--model", metavar="M", help="this model alone")
    command.add_argument("--instance-type", metavar="T", help="this hardware alone")
    command.add_argument(
        "--utilisation", metavar="U", type=share, default=UTILISATION, help="how much of it is to be sold (0.6)"
    )  # fmt: skip
    add_place(command)


def review(args: argparse.Namespace) -> int:
    """Propose a rate card for each model and hardware: from the last closed month, else from a benchmark."""
    config = config_load.load(config_load.config_path(args.config, os.environ), os.environ, flags(args))
    catalog = config_load.catalog_of(config.instance_types)
    objects = objects_of(pathlib.Path(config.state_dir), config.journal)
    try:
        book = price_books.load(config.prices, objects)
        measured = _measured(Closes(objects), args.month)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (ArchiveError, CloseFileError) as error:
        raise CommandError(str(error)) from error
    if measured.month is None:
        say("no month was closed; proposals rest on published benchmarks")
    shown = 0
    for model, instance_type in _asked(config, args.model, args.instance_type):
        one = _Review(config, catalog, book, model, instance_type, args.utilisation)
        sys.stdout.write(one.page(measured))
        shown += one.proposed
    if not shown:
        say("nothing could be proposed")
    return EXIT_OK if shown else EXIT_FAILED


class _Review:
    """Of one model on one instance type. proposed: there was something to propose."""

    def __init__(
        self, config: Config, catalog: Catalog, book: PriceBook, model: Model, instance_type: str,
        utilisation: fractions.Fraction,
    ) -> None:  # fmt: skip
        self._now_ns = time.time_ns()
        self._catalog = catalog
        self._model = model
        self._type = instance_type
        self._family = known_family(instance_type, catalog)
        self._utilisation = utilisation
        names = {name for tier in model.tiers for name in tier.backends}
        self._backends = [
            one for one in config.backends if one.name in names and one.instance_type == instance_type
        ]
        self._book = book
        self._weights = pricing_config.work_units(config.models).at(
            model.name, instance_type, self._family, self._now_ns
        )
        self._card = _card(config, model.name, (instance_type, self._family), self._now_ns)
        self.proposed = False

    def page(self, measured: _Measured) -> str:
        """Comments, and the lines to paste."""
        head = f"# {self._model.name} on {self._type}\n"
        found = measured.yields.get((self._model.name, self._type))
        if found is not None and found.micro_hours < _HOURS_MIN * MICRO_HOURS:
            found = None
        price = self._price_of(found)
        if price is None:
            return head + "#   no price of an hour is known: `weighbridge prices import`, or prices[]\n\n"
        basis = self._from_benchmark() if found is None else self._from_month(measured, found)
        if basis is None:
            return (
                head
                + "#   no instance-hour of its use is in closed hours of the month, and no benchmark of it is known\n\n"
            )
        self.proposed = True
        proposal = rate_review.propose(price.uusd_per_hour, basis.per_hour, self._weights, self._utilisation)
        return head + "".join(f"{line}\n" for line in self._lines(basis, price, proposal)) + "\n"

    def _price_of(self, found: Yield | None) -> InstancePrice | None:
        """Of today, as the instances of the month were paid for, or as a backend's that the file names."""
        first = self._backends[0]
        region, purchase_option = first.region, str(first.purchase_option or ON_DEMAND)
        if found is not None:
            region = found.newest.region or region
            purchase_option = found.newest.purchase_option or purchase_option
        return self._book.instance_price(self._type, region, purchase_option, self._now_ns)

    def _from_benchmark(self) -> Basis | None:
        row = self._benchmark()
        instance = self._catalog.get(self._type)
        rates = row.per_hour(instance) if row is not None and instance is not None else None
        if row is None or rates is None:
            return None
        work = rates[0] * self._weights.prompt + rates[1] * self._weights.completion
        return Basis(work, f"benchmark: {row}", (f"measured by {row.source or '?'}",))

    def _from_month(self, measured: _Measured, found: Yield) -> Basis:
        per_hour, how = found.per_hour(self._weights), "yielded while in use"
        if self._weights.per_hour is not None:
            per_hour, how = fractions.Fraction(self._weights.per_hour), f"calibrated, {self._weights.id}"
        calls = max(found.calls, 1)
        used = 100 * found.micro_hours / max(found.paid_micro_hours, 1)
        servers = sorted({one.neuron_version or "?" for one in self._backends})
        precisions = sorted({one.precision or "?" for one in self._backends})
        contexts = sorted({str(one.max_model_len or "?") for one in self._backends})
        slots = sum(one.slots or 0 for one in self._backends)
        words = ", ".join(
            [
                f"{measured.month} ({measured.state}): {found.calls} calls of {found.prompt_tokens // calls}"
                f"+{found.completion_tokens // calls} tokens",
                f"context {'/'.join(contexts)}",
                f"precision {'/'.join(precisions)}",
                f"SDK {'/'.join(servers)}",
                f"{slots or '?'} slots",
                *(["simulated"] if found.simulated else []),
            ]
        )
        more = (
            f"{found.micro_hours / MICRO_HOURS:.1f} of {found.paid_micro_hours / MICRO_HOURS:.1f} instance-hours "
            f"used ({used:.1f} %); capacity {how}",
        )
        return Basis(per_hour, words, more)

    def _benchmark(self) -> Benchmark | None:
        instance = self._catalog.get(self._type)
        if instance is None:
            return None
        names = [self._model.name, *self._model.aliases, *(one.model for one in self._backends)]
        return benchmarks.best(benchmarks.read(_benchmarks_csv()), names, instance)

    def _lines(self, basis: Basis, price: InstancePrice, proposal: Proposal) -> Iterator[str]:
        hourly = _usd(price.uusd_per_hour * PICO_USD_PER_MICRO_USD)
        priced = f"{hourly} USD/h {price.purchase_option} ({price.source}, {price.date or '?'})"
        yield f"#   basis: {basis.words}"
        for more in basis.more:
            yield f"#   {more}"
        yield f"#   price: {priced}"
        weights = self._weights
        yield (
            f"#   work units: {float(basis.per_hour):.4g} an hour at capacity, weights {weights.prompt}/"
            f"{weights.cached_prompt}/{weights.completion} ({weights.source}); target utilisation "
            f"{float(self._utilisation):g}"
        )
        yield f"#   {_difference(self._card, proposal)}"
        source = (
            f"{basis.words}; {hourly} USD/h of {price.date or '?'}; utilisation {float(self._utilisation):g}"
        )
        yield "rate_cards:"
        yield f"  - instance_type: {self._type}"
        yield f'    prompt: "{_usd(proposal.prompt)}"'
        yield f'    cached_prompt: "{_usd(proposal.cached_prompt)}"'
        yield f'    completion: "{_usd(proposal.completion)}"'
        today = datetime.datetime.fromtimestamp(self._now_ns // 10**9, datetime.UTC).date()
        yield f"    date: {today.isoformat()}"
        yield f"    source: {msgspec.json.encode(source[:_SOURCE_CHARACTERS_MAX]).decode()}"


def _asked(config: Config, model: str | None, instance_type: str | None) -> Iterator[tuple[Model, str]]:
    """Raises CommandError: there is nothing of that name."""
    found = []
    backends = {one.name: one for one in config.backends}
    for one in config.models:
        types = dict.fromkeys(backends[name].instance_type for tier in one.tiers for name in tier.backends)
        found += [(one, kind) for kind in types if kind is not None]
    chosen = [
        (one, kind) for one, kind in found if model in (None, one.name) and instance_type in (None, kind)
    ]
    if not chosen:
        known = (
            ", ".join(f"{one.name} on {kind}" for one, kind in found) or "no backend says its instance_type"
        )
        raise CommandError(f"there is nothing to review: {known}", EXIT_USAGE)
    yield from chosen


def _measured(closes: Closes, month: str | None) -> _Measured:
    """Raises ArchiveError, CloseFileError, ValueError."""
    if month is None:
        closed = [one for one in closes.months() if closes.month(one).state is MonthState.CLOSED]
        if not closed:
            return _Measured(None, "", {})
        month = closed[-1]
    manifests = closes.hours(month_hours(month))
    if not manifests:
        raise ValueError(f"no hour of {month} is closed; `weighbridge close` closes them")
    return _Measured(month, closes.month(month).state.value, rate_review.yields(closes.rows(manifests)))


def _card(config: Config, model: str, hardware: tuple[str, str], at_ns: int) -> RateCard | None:
    """The card of the type, else of the family, that is in force."""
    cards = [
        one
        for one in pricing_config.rate_cards(config.models)
        if one.model == model and one.since_ns <= at_ns
    ]
    for name in hardware:
        if of := [one for one in cards if one.hardware == name]:
            return max(of, key=lambda one: one.since_ns)
    return None


def _difference(card: RateCard | None, proposal: Proposal) -> str:
    if card is None:
        return "now: no rate card; calls are priced by slot time"
    parts = []
    for name in Proposal.__struct_fields__:
        now, then = getattr(card, name), getattr(proposal, name)
        change = f"{100 * (then - now) / now:+.1f} %" if now else "from nothing"
        parts.append(f"{name} {_usd(now)} -> {_usd(then)} ({change})")
    return f"now {card.id}: " + ", ".join(parts)


def _usd(pusd: int) -> str:
    return usd_text(pusd).rstrip("0").rstrip(".")


def _benchmarks_csv() -> str:
    return (importlib.resources.files("backends") / "data" / "neuron_benchmarks.csv").read_text(
        encoding="utf-8"
    )


def share(text: str) -> fractions.Fraction:
    """The type of a flag: above 0, at most 1."""
    try:
        found = fractions.Fraction(text)
    except (ValueError, ZeroDivisionError):
        found = fractions.Fraction(0)
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is none; write a share above 0 and at most 1, as in 0.6")
    return found
