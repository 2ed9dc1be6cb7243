"""`weighbridge report`: a month of closed hours in the terminal, or as JSON."""

import argparse
import datetime
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.commands.commands import EXIT_OK, EXIT_USAGE, CommandError, add, add_place, place
from gateway.configuration.config_load import Place

if TYPE_CHECKING:
    from metering.cost.amounts import PriceUsed
    from metering.cost.closes import Closes
    from metering.export.export_parts import Part
    from metering.export.selection import Selection


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(commands, "report", report)
    command.add_argument("--month", metavar="YYYY-MM", help="which month (default: the present one)")
    command.add_argument("--pool", metavar="M", help="this pool's waterfall alone")
    command.add_argument("--tenant", metavar="T", help="a tenant's month beside the one before")
    command.add_argument(
        "--by", metavar="NAMES", help="sums by tenant, cost_centre, project, model, family, day, …"
    )
    command.add_argument("--compare", metavar="TYPE,TYPE", help="what a model cost on two instance types")
    command.add_argument("--model", metavar="M", help="of --compare: which model")
    command.add_argument("--tz", metavar="NAME", default="UTC", help="whose days --by day means")
    command.add_argument("--json", action="store_true", help="exact figures, as decimal strings")
    add_place(command)


def report(args: argparse.Namespace) -> int:
    """Show where a month's money went: a waterfall for each pool, a tenant's month, or sums by what you name."""
    # What is needed only here is imported only here: the command line starts in a tenth of a second.
    from gateway.commands import report_page
    from gateway.duties import close_runs
    from metering.archive.facts import FactsError
    from metering.archive.objects import ArchiveError
    from metering.cost import summaries
    from metering.cost.close_files import CloseFileError
    from metering.cost.close_manifest import month_hours
    from metering.export import cells, selection, zones

    given = [name for name in ("pool", "tenant", "by", "compare") if getattr(args, name) is not None]
    if len(given) > 1:
        raise CommandError(f"--{' and --'.join(given)} do not go together", EXIT_USAGE)
    if (args.compare is None) != (args.model is None):
        raise CommandError("--compare and --model go together", EXIT_USAGE)
    try:
        month = args.month or datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
        period = month_hours(month)
        zone = zones.zone(args.tz)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    where = place(args)
    closes = close_runs.closes_of(where)
    try:
        found = selection.select(closes, period, running=True)
        if not found.parts:
            raise CommandError(f"no hour of {month} is closed; see `weighbridge close`")
        if args.by is not None:
            made = _by(closes, found, args.by.split(","), zone)
        elif args.compare is not None:
            made = _comparison(closes, found, args.compare.split(","), args.model, where)
        elif args.tenant is not None:
            made = _tenant(closes, found, args.tenant, where)
        else:
            made = _waterfalls(closes, found, args.pool)
        used = summaries.prices_used(closes, found.parts)
        head = [*_head(closes, month, found), *report_page.simulated(used)]
        besides = None if args.by or args.compare else _shared_costs(closes, found.parts, args.tenant)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (ArchiveError, CloseFileError, FactsError) as error:
        raise CommandError(str(error)) from error
    lines, figures = made
    if args.json:
        types = sorted({one.instance_type for one in used if one.simulated})
        state = closes.month(month).state.value
        shared = {} if besides is None else {"shared_costs_usd": cells.usd(besides)}
        sys.stdout.write(_json({"month": month, "state": state, "simulated": types, **shared, **figures}))
    else:
        said = report_page.shared_costs(besides, args.tenant)
        sys.stdout.write("\n".join([*head, *lines, *said, "", *_foot(used)]) + "\n")
    return EXIT_OK


Made = tuple[list[str], dict[str, Any]]
"""A part of the page, and the same as JSON has it."""


def _waterfalls(closes: "Closes", found: "Selection", pool: str | None) -> Made:
    from gateway.commands import report_page
    from gateway.faces import report_figures
    from metering.cost import month_sums

    steps = [one for one in month_sums.waterfalls(closes, found.parts) if pool in (None, one.pool)]
    if not steps:
        raise CommandError(f"no closed hour of this month has a pool {pool!r}")
    lines: list[str] = []
    for one in steps:
        lines += ["", *report_page.waterfall(one)]
    return lines, {"pools": [report_figures.waterfall(one) for one in steps]}


def _by(closes: "Closes", found: "Selection", by: Sequence[str], zone: datetime.tzinfo) -> Made:
    from gateway.commands import report_page
    from gateway.faces import report_figures
    from metering.cost import summaries

    sums = summaries.summarise(closes, found.parts, by, zone)
    return ["", *report_page.table(by, sums)], {"sums": [report_figures.summary(by, one) for one in sums]}


def _tenant(closes: "Closes", found: "Selection", tenant: str, where: Place) -> Made:
    from gateway.commands import report_page
    from gateway.faces import report_figures
    from metering.cost import month_sums
    from metering.cost.close_manifest import month_of

    lines = month_sums.tenant_lines(closes, found, tenant)
    if not lines:
        raise CommandError(f"no closed hour of this month or the one before has a tenant {tenant!r}")
    pools = {line.model for line in lines}
    used = [
        f"  {one.pool}: {report_page.ratios(one.ratios)}"
        for one in month_sums.waterfalls(closes, found.parts)
        if one.pool in pools and one.ratios is not None
    ]
    chargeback = found.chargeback_of(month_of(found.period.start)) or where.chargeback
    page = ["", *report_page.tenant(tenant, lines, chargeback), "", *used]
    figures = [report_figures.line(line) for line in lines]
    return page, {"tenant": tenant, "chargeback": chargeback, "lines": figures}


def _comparison(closes: "Closes", found: "Selection", types: Sequence[str], model: str, where: Place) -> Made:
    from gateway.commands import report_page
    from gateway.duties import close_runs
    from gateway.faces import report_figures
    from metering.cost import comparison, summaries
    from metering.cost.amounts import total
    from metering.export.cells import usd

    if len(types) != 2 or types[0] == types[1]:
        raise CommandError("--compare takes two instance types, as in inf2.48xlarge,g6e.12xlarge", EXIT_USAGE)
    sums = summaries.summarise(closes, found.parts, ["pool", "instance_type", "backend"])
    prices = summaries.prices_used(closes, found.parts)
    hosts = close_runs.hosts(where, found.period)
    bases = summaries.bases_used(closes, found.parts)
    sides = []
    for name in types:
        of_type = [one._replace(key=one.key[2:]) for one in sums if one.key[:2] == (model, name)]
        if not total(of_type).micro_hours:
            raise CommandError(f"no closed hour of this month has {model!r} on {name!r}")
        of_price = [price for price in prices if price.instance_type == name]
        sides.append(comparison.side(name, of_type, of_price, hosts, bases.get((model, name), ())))
    made = comparison.compare(*sides)
    figures = {
        "model": model,
        "sides": [
            {"instance_type": side.instance_type, "facts": side.facts}
            | {name: None if pusd is None else usd(pusd) for name, pusd in
               (("usd_per_mtok", side.per_mtok), ("used_usd_per_mtok", side.used_per_mtok))}
            | {"all": report_figures.amounts(side.all_of_it), "tenants": report_figures.amounts(side.tenants)}
            for side in made.sides
        ],
        "lacking": made.lacking,
        "differing": sorted(made.differing),
        "saving_ppm": made.saving_ppm,
    }  # fmt: skip
    return ["", *report_page.comparison(model, made)], figures


def _head(closes: "Closes", month: str, found: "Selection") -> list[str]:
    from metering.cost.close_manifest import BILL, Reason

    manifests = [part.manifest for part in found.parts if part.correction is None]
    looks = sum(one.reason is Reason.NOW for one in manifests)
    closed = len(manifests) - looks
    corrections = len({part.manifest.hour for part in found.parts if part.correction is not None})
    billed = sum(one.basis.startswith(BILL) for one in manifests)
    hours = f"{closed} of {len(found.period)} hours closed"
    hours += f", a look into {looks}" if looks else ""
    hours += f", {corrections} corrected" if corrections else ""
    basis = "the bill" if billed == len(manifests) else "list prices"
    if 0 < billed < len(manifests):
        basis = f"the bill in {billed} of {len(manifests)} hours, else by list prices"
    kept = [instance for one in manifests for instance in one.unbilled]
    if kept:
        basis += (
            f"; {len(kept)} instance-hours of {len(set(kept))} instances are not on it, and have list prices"
        )
    methods = "; ".join(sorted({f"{one.method}, rest shared: {one.sharing}" for one in manifests}))
    return [
        f"{month}: {closes.month(month).state.value}, {hours}; USD, rounded",
        f"method {methods}",
        f"cost by {basis}",
    ]


def _shared_costs(closes: "Closes", parts: "Sequence[Part]", tenant: str | None) -> int:
    """Picodollars of shared costs, which are in no sum of what instances cost: of all, or split out to this tenant."""
    from metering.cost import summaries
    from metering.cost.amounts import total
    from metering.cost.close_row import RowKind

    sums = summaries.summarise(closes, parts, ["tenant"])
    return total((one for one in sums if tenant in (None, one.key[0])), RowKind.SHARED_COST).allocated_pusd


def _foot(used: "Sequence[PriceUsed]") -> list[str]:
    from gateway.commands import report_page

    found = report_page.prices(used)
    return ["instance-hours and their prices", *found] if found else ["no instance was paid for"]


def _json(figures: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n"
