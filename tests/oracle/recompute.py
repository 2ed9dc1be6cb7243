"""What each call of the demo must have cost, from outside: `python -m tests.oracle.recompute STATE_DIR CSV`.

    the servers' own logs (GET /_sim/log)  ×  the prices in <STATE_DIR>/demo.yaml
        = record in the journal = balance in the store = row of the CSV          to the picodollar

To be run while the first demo of a state directory runs: a server's log ends with the server. CSV: what
`weighbridge export` wrote. Only the standard library, and nothing of the product. Exit status 1: something differs.
"""

import collections
import csv
import dataclasses
import decimal
import json
import pathlib
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from tests.oracle import journal, ledger, plain_yaml
from tests.oracle.resp import Connection

PICO = 10**12
UNITS = ("calls", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "cost_pusd")

Sums = dict[str, tuple[int, ...]]
"""By "tenant project model family": one amount for each of UNITS."""


@dataclasses.dataclass
class Server:
    """A simulated server: its family, the prices there (USD per 1M tokens), its log."""

    name: str
    family: str
    prices: dict[str, Fraction]
    log: list[dict[str, Any]]

    def answered(self, request_id: str) -> list[dict[str, Any]]:
        return [one for one in self.log if (one["request_id"], one["outcome"]) == (request_id, "completed")]

    def cost_pusd(self, entry: dict[str, Any]) -> int:
        cached = entry["cached_tokens"]
        usd = (
            (entry["prompt_tokens"] - cached) * self.prices["prompt"]
            + cached * self.prices["cached_prompt"]
            + entry["completion_tokens"] * self.prices["completion"]
        ) / 10**6
        return int((usd * PICO * 2 + 1) // 2)  # half up, once


def servers(config: dict[str, Any]) -> list[Server]:
    """The servers of a configuration, with their logs."""
    (model,) = config["models"]
    cards = {
        card["family"]: {
            name: Fraction(decimal.Decimal(card[name])) for name in ("prompt", "cached_prompt", "completion")
        }
        for card in model["rate_cards"]
    }
    found = []
    for backend in config["backends"]:
        family = backend["instance_type"].partition(".")[0]
        with urllib.request.urlopen(f"{backend['url']}/_sim/log", timeout=10) as answer:
            log = [json.loads(line) for line in answer]
        found.append(Server(backend["name"], family, cards[family], log))
    return found


def check_records(
    fleet: list[Server], calls: Iterable[dict[str, Any]], sums: collections.defaultdict[str, list[int]]
) -> Iterator[str]:
    """Faults of single records; what they must add up to goes into `sums`."""
    seen = 0
    for call in calls:
        found = [(server, entry) for server in fleet for entry in server.answered(call["request_id"])]
        if len(found) != 1:
            yield f"{call['call_id']}: {len(found)} servers answered it"
            continue
        ((server, entry),) = found
        seen += 1
        usage = call["usage"]
        want = (server.name, server.family, entry["prompt_tokens"], entry["cached_tokens"])
        want += (entry["completion_tokens"], server.cost_pusd(entry))
        have = (call["backend"], call["instance_family"], usage["prompt_tokens"])
        have += (usage["cached_prompt_tokens"], usage["completion_tokens"], call["cost_pusd"])
        if have != want:
            yield f"{call['call_id']}: the record says {have}, the server's log and the prices {want}"
        account = sums[f"{call['tenant']} {call['project']} {call['model']} {server.family}"]
        for at, amount in enumerate((1, *want[2:])):
            account[at] += amount
    answered = sum(one["outcome"] == "completed" for server in fleet for one in server.log)
    if answered != seen:
        yield f"{answered} calls were answered by servers, {seen} of them recorded"


def of_ledger(held: ledger.Ledger) -> Sums:
    """The store's balances, over all hours."""
    sums: collections.defaultdict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for name, value in held.balances.items():
        tenant, _, field = name.split(" ")
        project, model, family, unit = field.split("|")
        sums[f"{tenant} {project} {model} {family}"][unit] += value
    return {account: tuple(units[unit] for unit in UNITS) for account, units in sums.items()}


def of_csv(path: pathlib.Path) -> Sums:
    """The CSV's rows, over all hours."""
    sums: collections.defaultdict[str, list[int]] = collections.defaultdict(lambda: [0] * len(UNITS))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            account = sums[f"{row['tenant']} {row['project']} {row['model']} {row['instance_family']}"]
            usd = decimal.Decimal(row["estimated_usd"]) * PICO
            for at, amount in enumerate((*(int(row[unit]) for unit in UNITS[:-1]), int(usd))):
                account[at] += amount
    return {account: tuple(amounts) for account, amounts in sums.items()}


def main() -> int:
    state_dir, csv_path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    config = plain_yaml.read((state_dir / "demo.yaml").read_text(encoding="utf-8"))
    calls = list(journal.calls(journal.read(state_dir / "journal")))
    sums: collections.defaultdict[str, list[int]] = collections.defaultdict(lambda: [0] * len(UNITS))
    faults = list(check_records(servers(config), calls, sums))
    want = {account: tuple(amounts) for account, amounts in sums.items()}
    with Connection((state_dir / "store" / "url").read_text().strip()) as store:
        books = {"store": of_ledger(ledger.read(store)), "CSV": of_csv(csv_path)}
    for name, have in books.items():
        faults += [
            f"{account}: {have.get(account)} in the {name}, {want.get(account)} recomputed"
            for account in sorted(have.keys() | want.keys())
            if have.get(account) != want.get(account)
        ]
    for fault in faults:
        print(fault)
    totals = [sum(amounts) for amounts in zip(*want.values(), strict=True)]
    print(
        f"calls={totals[0]} tenants={len({call['tenant'] for call in calls})} cached_tokens={totals[2]} "
        f"fallbacks={sum(call['fallback_reason'] is not None for call in calls)} pusd={totals[4]} faults={len(faults)}"
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
