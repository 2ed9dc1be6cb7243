"""An export, compared row by row with the ledger that the journals make."""

import csv
import decimal
import pathlib
import time
from collections.abc import Mapping

from tests.oracle.faults import Fault, Kind
from tests.oracle.ledger import Ledger

PUSD_PER_USD = 10**12
COUNTS = ("calls", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "unpriced_calls")


def read(path: pathlib.Path) -> dict[str, int]:
    """What the rows say by the ledger's names, "tenant hour project|model|family|unit"; zeros are left out."""
    balances = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            hour = time.strftime("%Y%m%d%H", time.strptime(row["period_start"], "%Y-%m-%dT%H:%M:%SZ"))
            account = f"{row['tenant']} {hour} {row['project']}|{row['model']}|{row['instance_family']}"
            for unit in COUNTS:
                balances[f"{account}|{unit}"] = int(row[unit])
            balances[f"{account}|cost_pusd"] = int(decimal.Decimal(row["estimated_usd"]) * PUSD_PER_USD)
    return {name: value for name, value in balances.items() if value}


def check(path: pathlib.Path, journalled: Ledger) -> list[Fault]:
    """Every balance that differs."""
    want: Mapping[str, int] = journalled.balances
    have = read(path)
    return [
        Fault(Kind.EXPORT, name, f"{have.get(name)} in {path.name}, {want.get(name)} by the journal")
        for name in sorted(want.keys() | have.keys())
        if want.get(name) != have.get(name)
    ]
