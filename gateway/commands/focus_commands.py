"""`weighbridge focus …`: files in the format of the FinOps Open Cost and Usage Specification, whoever wrote them."""

import argparse
import collections
import pathlib
import sys
from collections.abc import Iterator

from gateway.commands.commands import EXIT_FAILED, EXIT_OK, CommandError, add, count
from metering.export.focus.columns import Version
from metering.export.focus.record import Finding, NumberedRow

SHOWN = 100


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    focus = top.add_parser("focus", help="FOCUS files").add_subparsers(required=True, metavar="command")
    command = add(focus, "check", check)
    command.add_argument("file", metavar="FILE", type=pathlib.Path)
    command.add_argument(
        "--focus-version",
        choices=[version.value for version in Version],
        help="the version to check by (default: the one that its columns show)",
    )
    command.add_argument("--show", metavar="N", type=count, default=SHOWN, help="findings to print at most")


def check(args: argparse.Namespace) -> int:
    """Check a FOCUS file, CSV or Parquet, by every rule that its rows can break; name line, column, rule and value."""
    from metering.export.focus import check as checking
    from metering.export.focus import files
    from metering.export.focus.file_rules import version_of

    asked = None if args.focus_version is None else Version(args.focus_version)
    rules: collections.Counter[str] = collections.Counter()
    try:
        opened = files.read(args.file)
        counted = _Rows(opened.rows)
        for finding in checking.check(opened.header, counted, asked):
            if rules.total() < args.show:
                sys.stdout.write(_text(args.file, finding) + "\n")
            rules[finding.rule] += 1
    except files.FocusFileError as error:
        raise CommandError(str(error)) from error
    version = asked or version_of(opened.header)
    if not rules:
        sys.stdout.write(f"{args.file}: ok, {counted.count} rows, FOCUS {version}\n")
        return EXIT_OK
    broken = ", ".join(f"{rule} {times}" for rule, times in sorted(rules.items()))
    sys.stdout.write(
        f"{args.file}: {rules.total()} findings in {counted.count} rows, FOCUS {version}: {broken}\n"
    )
    return EXIT_FAILED


class _Rows:
    """Counts rows as they pass."""

    def __init__(self, rows: Iterator[NumberedRow]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> "_Rows":
        return self

    def __next__(self) -> NumberedRow:
        row = next(self._rows)
        self.count += 1
        return row


def _text(path: pathlib.Path, finding: Finding) -> str:
    value = f" {finding.value!r}" if finding.value else ""
    return f"{path}:{finding.line}: {finding.column or 'row'}: {finding.rule}:{value} {finding.says}"
