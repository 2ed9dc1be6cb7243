"""`weighbridge report`: a month of closed hours in the terminal, or as JSON."""

import argparse
import datetime
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.commands import EXIT_OK, EXIT_USAGE, CommandError, add, add_place, place
from gateway.config_load import Place

if TYPE_CHECKING:
    from metering.amounts import Amounts, PriceUsed
    from metering.closes import Closes
    from metering.export_parts import Part
    from metering.selection import Selection

_TENANT_LINES = ("model", "family")


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
    from gateway import close_runs, report_page
    from metering import cells, selection, summaries, zones
    from metering.close_files import CloseFileError
    from metering.close_manifest import month_hours
    from metering.facts import FactsError
    from metering.objects import ArchiveError

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
    from gateway import report_page
    from metering import month_report, summaries
    from metering.cells import usd

    sums = summaries.summarise(closes, found.parts, ["pool"])
    charges = [part.manifest for part in found.parts if part.correction is None]
    steps = [one for one in month_report.waterfalls(sums, charges) if pool in (None, one.pool)]
    if not steps:
        raise CommandError(f"no closed hour of this month has a pool {pool!r}")
    lines: list[str] = []
    for one in steps:
        lines += ["", *report_page.waterfall(one)]
    figures = [
        {
            "pool": one.pool,
            "billed_usd": usd(one.billed),
            "rest_usd": {kind.value: usd(amount) for kind, amount in one.rest.items()},
            "tenants_usd": usd(one.tenants),
            "recovered_usd": usd(one.recovered),
            "under_recovery_usd": usd(one.under_recovery),
            "calls": one.calls,
            "tokens": one.tokens,
            "unpriced_micro_hours": one.unpriced_micro_hours,
            "unpriced_calls": one.unpriced_calls,
            "ratios_ppm": one.ratios,
        }
        for one in steps
    ]
    return lines, {"pools": figures}


def _by(closes: "Closes", found: "Selection", by: Sequence[str], zone: datetime.tzinfo) -> Made:
    from gateway import report_page
    from metering import summaries

    sums = summaries.summarise(closes, found.parts, by, zone)
    figures = [
        dict(zip(by, one.key, strict=True)) | {"kind": one.kind.value} | _figures(one.amounts) for one in sums
    ]
    return ["", *report_page.table(by, sums)], {"sums": figures}


def _tenant(closes: "Closes", found: "Selection", tenant: str, where: Place) -> Made:
    from gateway import report_page
    from metering import month_report, selection, summaries
    from metering.close_manifest import month_hours, month_of

    before = selection.select(closes, month_hours(month_of(found.period.start - 1)))
    now_lines, before_lines = (
        [
            one
            for one in summaries.summarise(closes, parts, ["tenant", *_TENANT_LINES])
            if one.key[0] == tenant
        ]
        for parts in (found.parts, before.parts)
    )
    if not now_lines and not before_lines:
        raise CommandError(f"no closed hour of this month or the one before has a tenant {tenant!r}")
    lines = month_report.tenant_lines(
        *([one._replace(key=one.key[1:]) for one in sums] for sums in (now_lines, before_lines))
    )
    pools = {line.model for line in lines}
    sums = summaries.summarise(closes, found.parts, ["pool"])
    charges = [part.manifest for part in found.parts if part.correction is None]
    used = [
        f"  {one.pool}: {report_page.ratios(one.ratios)}"
        for one in month_report.waterfalls(sums, charges)
        if one.pool in pools and one.ratios is not None
    ]
    figures = [
        {
            "model": line.model,
            "family": line.hardware,
            "now": _figures(line.now),
            "before": _figures(line.before),
            "effects_usd": {
                "estimated": _effect(line.estimated),
                "allocated": _effect(line.allocated),
            },
        }
        for line in lines
    ]
    page = ["", *report_page.tenant(tenant, lines, where.chargeback), "", *used]
    return page, {"tenant": tenant, "chargeback": where.chargeback, "lines": figures}


def _comparison(closes: "Closes", found: "Selection", types: Sequence[str], model: str, where: Place) -> Made:
    from gateway import close_runs, report_page
    from metering import comparison, summaries
    from metering.amounts import total
    from metering.cells import usd

    if len(types) != 2 or types[0] == types[1]:
        raise CommandError("--compare takes two instance types, as in inf2.48xlarge,g6e.12xlarge", EXIT_USAGE)
    sums = summaries.summarise(closes, found.parts, ["pool", "instance_type", "backend"])
    prices = summaries.prices_used(closes, found.parts)
    hosts = close_runs.hosts(where, found.period)
    bases = [part.manifest.basis.partition(":")[0] for part in found.parts]
    sides = []
    for name in types:
        of_type = [one._replace(key=one.key[2:]) for one in sums if one.key[:2] == (model, name)]
        if not total(of_type).micro_hours:
            raise CommandError(f"no closed hour of this month has {model!r} on {name!r}")
        of_price = [price for price in prices if price.instance_type == name]
        sides.append(comparison.side(name, of_type, of_price, hosts, bases))
    made = comparison.compare(*sides)
    figures = {
        "model": model,
        "sides": [
            {"instance_type": side.instance_type, "facts": side.facts}
            | {name: None if pusd is None else usd(pusd) for name, pusd in
               (("usd_per_mtok", side.per_mtok), ("used_usd_per_mtok", side.used_per_mtok))}
            | {"all": _figures(side.all_of_it), "tenants": _figures(side.tenants)}
            for side in made.sides
        ],
        "lacking": made.lacking,
        "differing": sorted(made.differing),
        "saving_ppm": made.saving_ppm,
    }  # fmt: skip
    return ["", *report_page.comparison(model, made)], figures


def _head(closes: "Closes", month: str, found: "Selection") -> list[str]:
    from metering.close_manifest import BILL, Reason

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
    methods = "; ".join(sorted({f"{one.method}, rest shared: {one.sharing}" for one in manifests}))
    return [
        f"{month}: {closes.month(month).state.value}, {hours}; USD, rounded",
        f"method {methods}",
        f"cost by {basis}",
    ]


def _shared_costs(closes: "Closes", parts: "Sequence[Part]", tenant: str | None) -> int:
    """Picodollars of shared costs, which are in no sum of what instances cost: of all, or split out to this tenant."""
    from metering import summaries
    from metering.amounts import total
    from metering.close_row import RowKind

    sums = summaries.summarise(closes, parts, ["tenant"])
    return total((one for one in sums if tenant in (None, one.key[0])), RowKind.SHARED_COST).allocated_pusd


def _foot(used: "Sequence[PriceUsed]") -> list[str]:
    from gateway import report_page

    found = report_page.prices(used)
    return ["instance-hours and their prices", *found] if found else ["no instance was paid for"]


def _figures(amounts: "Amounts") -> dict[str, Any]:
    from metering.cells import millionths, seconds, usd

    return {
        "calls": amounts.calls,
        "unpriced_calls": amounts.unpriced_calls,
        "prompt_tokens": amounts.prompt_tokens,
        "cached_prompt_tokens": amounts.cached_prompt_tokens,
        "completion_tokens": amounts.completion_tokens,
        "work_units": amounts.work_units,
        "slot_seconds": seconds(amounts.slot_ns),
        "hours": millionths(amounts.micro_hours),
        "unpriced_hours": millionths(amounts.unpriced_micro_hours),
        "list_usd": usd(amounts.list_pusd),
        "allocated_usd": usd(amounts.allocated_pusd),
        "shared_usd": usd(amounts.shared_pusd),
        "estimated_usd": usd(amounts.estimated_pusd),
    }


def _effect(one: Any) -> dict[str, str]:
    from metering.cells import usd

    return {"usage": usd(one.usage), "price": usd(one.price)}


def _json(figures: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n"
