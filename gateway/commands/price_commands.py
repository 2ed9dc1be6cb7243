"""`weighbridge prices …`: what an hour of an instance costs, and how other prices are taken in.

An import is told by a journal of its own before it is kept. Running workers take it up within a second, those of other
hosts once their clerk has seen it in the archive.
"""

import argparse
import hashlib
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import get_args

import msgspec

from backends.catalog import Catalog, known_family
from gateway.commands.commands import EXIT_OK, EXIT_USAGE, CommandError, add, add_place, place, say, tell
from gateway.configuration import price_books
from gateway.configuration.archives import archive_of, objects_of
from gateway.configuration.config_load import Place, catalog_of
from gateway.configuration.config_shape import did_you_mean
from gateway.faces import price_figures
from metering.archive.objects import AlreadyThere, ArchiveError
from metering.cost import aws_prices, price_import, price_table
from metering.cost.aws_prices import Lease, LeaseLength, OfferingClass, Payment
from metering.cost.price_book import InstancePrice, Origin, PriceBook
from metering.cost.price_import import Accepted, ImportRefused, Offer
from metering.cost.price_versions import PriceVersion, PriceVersions, bring_level
from metering.journal import event_journal, events
from metering.periods import instant_text, parse_instant

_LEASES = {
    f"{length},{offering_class},{payment.lower().replace(' ', '-')}": Lease(length, offering_class, payment)
    for length in get_args(LeaseLength)
    for offering_class in get_args(OfferingClass)
    for payment in get_args(Payment)
}
_FILE_BYTES_MAX = 2 << 30


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    prices = commands.add_parser("prices", help="Prices of instances").add_subparsers(
        required=True, metavar="command"
    )
    command = add(prices, "show", show)
    command.add_argument("--at", metavar="T", type=instant, help="a date or RFC 3339 (default: now)")
    command.add_argument("--type", metavar="TYPE", help="of this instance type alone, or of this family")
    command.add_argument("--json", action="store_true", help="as JSON, one price a line")
    add_place(command)

    command = add(prices, "import", import_file)
    command.add_argument("file", metavar="FILE", type=pathlib.Path, help="a CSV, or AWS' price list as JSON")
    _add_choice(command)
    add_place(command)

    command = add(prices, "diff", diff)
    command.add_argument(
        "file", metavar="FILE", help="what an import would change; or the number of one that was"
    )
    _add_choice(command)
    add_place(command)


def _add_choice(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--all-types",
        action="store_true",
        help="of AWS' list all instance types, not the accelerated ones alone",
    )
    command.add_argument(
        "--reserved", metavar="LEASE", type=lease,
        help="of AWS' list this kind of reservation too, as in 3yr,standard,all-upfront",
    )  # fmt: skip


def show(args: argparse.Namespace) -> int:
    """Show the price of each instance type, region and purchase option, where it is from, and since when it holds."""
    where = place(args)
    at_ns = time.time_ns() if args.at is None else args.at
    book, catalog = _book(where), catalog_of(where.instance_types)
    rows = list(_in_force(book, at_ns, args.type, catalog))
    if args.type is not None and not rows:
        raise CommandError(_unknown_type(args.type, book, at_ns, catalog))
    if args.json:
        sys.stdout.write(
            "".join(
                msgspec.json.encode(price_figures.price(origin, price)).decode() + "\n"
                for origin, price in rows
            )
        )
    else:
        _write_table(
            ("instance type", "region", "option", "USD/h", "since", "of", "from", "source"),
            [
                (
                    price.instance_type, price.region or "everywhere", price.purchase_option, price_figures.usd(price),
                    _since(price), price.date or "?", origin.value, price.source,
                )
                for origin, price in rows
            ],
        )  # fmt: skip
    if not rows:
        say("no price is known at that time")
    return EXIT_OK


def import_file(args: argparse.Namespace) -> int:
    """Take prices from a file into the price book: all of it, or nothing where something is wrong with it."""
    where = place(args)
    data = _read(args.file)
    objects = objects_of(pathlib.Path(where.state_dir), where.journal)
    versions = PriceVersions(objects)
    try:
        _level(where)
        kept = versions.all()
        book, now_ns = price_books.load(where.prices, objects), time.time_ns()
        accepted = _accept(book, args, data, now_ns)
        if not accepted.added:
            say(f"nothing new: all {accepted.unchanged} prices of {args.file} have been imported before")
            return EXIT_OK
        before = [price for stored in kept for price in stored.version.added]
        version = PriceVersion(
            added=tuple(accepted.added),
            file=args.file.name,
            file_sha256=hashlib.sha256(data).hexdigest(),
            imported_ns=now_ns,
            made_by=event_journal.user(),
            number=len(kept) + 1,
            previous=kept[-1].sha256 if kept else None,
        )
        told = events.prices_imported(
            actor=version.made_by,
            version=version.number,
            file=version.file,
            sha256=version.file_sha256,
            added=len(version.added),
            before=PriceBook((), before).digest,
            after=PriceBook((), [*before, *version.added]).digest,
        )
        tell(where, "prices import", told)
        versions.put(version)
        _level(where)
    except AlreadyThere as error:
        raise CommandError(
            "somebody else has imported prices meanwhile; nothing was imported: try again"
        ) from error
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    _write_changes(book, accepted, now_ns)
    say(
        f"version {version.number}: prices imported: {len(accepted.added)}, known already: {accepted.unchanged}"
    )
    return EXIT_OK


def diff(args: argparse.Namespace) -> int:
    """Show what an import of a file would change, or what an import (by its number) has changed; nothing is done."""
    where = place(args)
    objects = objects_of(pathlib.Path(where.state_dir), where.journal)
    try:
        if not args.file.isdecimal():
            book, now_ns = price_books.load(where.prices, objects), time.time_ns()
            accepted = _accept(book, args, _read(pathlib.Path(args.file)), now_ns)
        else:
            kept = PriceVersions(objects).all()
            number = int(args.file)
            if not 1 <= number <= len(kept):
                raise CommandError(f"there is no version {number}: {len(kept)} have been imported")
            version = kept[number - 1].version
            shipped = [price for origin, price in price_books.load((), objects) if origin is Origin.SHIPPED]
            before = [price for stored in kept[: number - 1] for price in stored.version.added]
            book, now_ns = PriceBook((), before, shipped), version.imported_ns
            accepted = Accepted(list(version.added), 0)
            say(f"version {number} of {instant_text(now_ns)}, {version.file}, by {version.made_by}")
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    _write_changes(book, accepted, now_ns)
    return EXIT_OK


def _book(where: Place) -> PriceBook:
    try:
        return price_books.load(where.prices, objects_of(pathlib.Path(where.state_dir), where.journal))
    except ArchiveError as error:
        raise CommandError(str(error)) from error


def _level(where: Place) -> None:
    """Raises ArchiveError."""
    archive = archive_of(where.journal)
    if archive is not None:
        bring_level(archive.objects, pathlib.Path(where.state_dir))


def _read(path: pathlib.Path) -> bytes:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise CommandError(f"{path} is larger than 2 GiB; take the file of one region")
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", EXIT_USAGE) from error


def _accept(book: PriceBook, args: argparse.Namespace, data: bytes, now_ns: int) -> Accepted:
    """Raises CommandError with all that is wrong with the file."""
    try:
        return price_import.accept(book, _offers(args, data), now_ns)
    except ImportRefused as error:
        mistakes = "\n".join(f"{args.file}: {mistake}" for mistake in error.mistakes)
        raise CommandError(f"nothing was imported\n{mistakes}", EXIT_USAGE) from error


def _offers(args: argparse.Namespace, data: bytes) -> list[Offer]:
    """Raises ImportRefused."""
    if data.lstrip()[:1] not in (b"{", b"["):
        try:
            return price_table.read(data.decode())
        except UnicodeDecodeError as error:
            raise ImportRefused(["is neither a CSV in UTF-8 nor JSON"]) from error
    catalog = catalog_of(place(args).instance_types)
    families = {one.family for one in catalog.values()}

    def wanted(instance_type: str) -> bool:
        return args.all_types or known_family(instance_type, catalog) in families

    found = aws_prices.read(data, wanted, args.reserved)
    for reason, count in sorted(found.passed_over.items()):
        say(f"passed over: {count} {reason}")
    return found.offers


def _in_force(
    book: PriceBook, at_ns: int, of_type: str | None, catalog: Catalog
) -> Iterable[tuple[Origin, InstancePrice]]:
    """Those of a type or a family, or all."""
    for origin, price in book.in_force(at_ns):
        if of_type in (None, price.instance_type, known_family(price.instance_type, catalog)):
            yield origin, price


def _unknown_type(name: str, book: PriceBook, at_ns: int, catalog: Catalog) -> str:
    """What to say of a type or a family that has no price."""
    priced = {price.instance_type for _, price in book.in_force(at_ns)}
    families = {family for one in priced if (family := known_family(one, catalog)) is not None}
    near = "" if name in catalog else did_you_mean(name, sorted(priced | families))
    hint = near or "; weighbridge prices import FILE takes one in, or give it one under prices in the file"
    return f"no price is known of {name} at that time{hint}"


def _write_changes(book: PriceBook, accepted: Accepted, now_ns: int) -> None:
    rows = []
    for price in accepted.added:
        before = book.listed(price.of, max(price.valid_from_ns, now_ns))
        was = price_figures.usd(before) if before is not None else "none"
        rows.append((str(price.of), was, price_figures.usd(price), _since(price), price.source))
    _write_table(("price of", "was", "is", "since", "source"), rows)


def _write_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        sys.stdout.write("  ".join([*cells, row[-1]]).rstrip() + "\n")


def _since(price: InstancePrice) -> str:
    return price_figures.since(price) or "ever"


def instant(text: str) -> int:
    """The type of a flag: a date or RFC 3339, as ns since 1970 (UTC)."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def lease(text: str) -> Lease:
    """The type of a flag: a kind of reservation."""
    if text in _LEASES:
        return _LEASES[text]
    forms = "1yr or 3yr, standard or convertible, no-upfront, partial-upfront or all-upfront"
    raise argparse.ArgumentTypeError(f"{text!r} is none; write {forms}, with commas between them")
