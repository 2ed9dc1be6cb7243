"""The ledger, computed again from the records alone, and read from the store.

Balances by (tenant, hour, field): hour is `yyyymmddhh` (UTC) of `finished_ns`, field is
`project|model|family|unit`. A count that is null adds nothing; a cost that is null is an unpriced call.
Marks by (tenant, writer): `seq:leaf` of the tenant's last record, the leaf's first 16 hex digits.
"""

import collections
import dataclasses
import re
import time
from collections.abc import Iterable, Iterator

from tests.oracle.faults import Fault, Kind
from tests.oracle.journal import Line, Writer
from tests.oracle.resp import Connection

_KEY = re.compile(r"wb:1:\{(?P<tenant>[^}]+)\}:(?:(?P<marks>m)|h:(?P<hour>\d{10}))")


@dataclasses.dataclass(frozen=True)
class Ledger:
    """balances: "tenant hour field" → integer; marks: "tenant writer" → seq:leaf."""

    balances: dict[str, int]
    marks: dict[str, str]


def recompute(writers: Iterable[Writer]) -> Ledger:
    """What the store must hold once all is folded."""
    balances: collections.Counter[str] = collections.Counter()
    marks = {}
    for writer in writers:
        for line, leaf in zip(writer.lines, writer.leaves, strict=True):
            if line["kind"] == "call":
                marks[f"{line['tenant']} {writer.name}"] = f"{line['seq']}:{leaf[:16]}"
                balances.update(dict(_amounts(line)))
    return Ledger({name: value for name, value in balances.items() if value}, marks)


def _amounts(call: Line) -> Iterator[tuple[str, int]]:
    hour = time.strftime("%Y%m%d%H", time.gmtime(call["finished_ns"] // 1_000_000_000))
    family = call["instance_family"] or "unknown"
    account = f"{call['tenant']} {hour} {call['project'] or ''}|{call['model']}|{family}"
    yield f"{account}|calls", 1
    for unit in ("prompt_tokens", "cached_prompt_tokens", "completion_tokens"):
        yield f"{account}|{unit}", call["usage"][unit] or 0
    yield f"{account}|cost_pusd", call["cost_pusd"] or 0
    yield f"{account}|unpriced_calls", int(call["cost_pusd"] is None)


def read(store: Connection) -> Ledger:
    """What the store holds."""
    balances, marks = {}, {}
    for key in store.keys("wb:1:*"):
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        for field, value in store.hash(key).items():
            if match["marks"]:
                marks[f"{match['tenant']} {field}"] = value
            else:
                balances[f"{match['tenant']} {match['hour']} {field}"] = int(value)
    return Ledger(balances, marks)


def check(journalled: Ledger, held: Ledger) -> list[Fault]:
    """Every balance and every mark that differs."""
    pairs: list[tuple[dict[str, int] | dict[str, str], dict[str, int] | dict[str, str]]] = [
        (journalled.balances, held.balances),
        (journalled.marks, held.marks),
    ]
    return [
        Fault(Kind.LEDGER, name, f"{have.get(name)} in the store, {want.get(name)} by the journal")
        for want, have in pairs
        for name in sorted(want.keys() | have.keys())
        if want.get(name) != have.get(name)
    ]


def above(journalled: Ledger, held: Ledger) -> list[Fault]:
    """Balances of a store, read before the journals were, that have more than those."""
    return [
        Fault(Kind.ABOVE, name, f"{value} in the store, {journalled.balances.get(name, 0)} by the journals")
        for name, value in sorted(held.balances.items())
        if value > journalled.balances.get(name, 0)
    ]


def unready(store: Connection, tenants: Iterable[str]) -> list[Fault]:
    """Tenants of whom the store does not say that it holds all that is known of them."""
    epoch = store.ask("GET", "wb:1:epoch")
    faults = []
    for tenant in sorted(tenants):
        meta = store.hash(f"wb:1:{{{tenant}}}:meta")
        if not epoch or {meta.get("epoch"), meta.get("ready")} != {epoch}:
            faults.append(Fault(Kind.LEDGER, tenant, f"not ready: epoch {epoch}, {meta}"))
    return faults


def difference_pusd(journalled: Ledger, held: Ledger) -> int:
    """How far the sums of money are apart, over all accounts."""
    names = {
        name for name in journalled.balances.keys() | held.balances.keys() if name.endswith("|cost_pusd")
    }
    return sum(abs(journalled.balances.get(name, 0) - held.balances.get(name, 0)) for name in names)
