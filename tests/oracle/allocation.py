"""What the parts of an instance-hour are exactly, as fractions, and what `split` must give, walked unit by unit.

A backend's part is a plain dict here: backend, units, owned, ready, busy (ns), slots, capacity (work units an hour),
slot_ns and work: who → amount, where `~overhead` is one of them.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any


def walk(quantity: int, weights: Mapping[Any, int]) -> dict[Any, int]:
    """Hand out a non-negative quantity one by one: a unit goes to the first key up to which it is due in full."""
    total, keys = sum(weights.values()), sorted(weights)
    parts = dict.fromkeys(keys, 0)
    for unit in range(1, quantity + 1):
        reached = 0
        for key in keys:
            reached += weights[key]
            if Fraction(quantity * reached, total) >= unit:
                parts[key] += 1
                break
    return parts


def exact(
    micro_hours: int, paid: int, units_total: int, shares: Iterable[Mapping[str, Any]], method: str
) -> dict[tuple[str, str], Fraction]:
    """(backend, who) → its part. who: as in slot_ns, `headroom`, `idle`, `startup`; of backend "": `stranded`."""
    shares = list(shares)
    whole = max(units_total * paid, sum(share["units"] * share["owned"] for share in shares))
    parts: dict[tuple[str, str], Fraction] = {}
    for share in shares:
        part = Fraction(micro_hours * share["units"] * share["owned"], whole)
        weights = WEIGHTS[method](share) if share["owned"] else {}
        total = sum(weights.values())
        parts |= {(share["backend"], who): part * weight / total for who, weight in weights.items()}
    parts["", "stranded"] = micro_hours - sum(parts.values(), Fraction(0))
    return parts


def _times(share: Mapping[str, Any]) -> tuple[int, int, int]:
    able = max(share["ready"], share["busy"])
    return share["busy"], able - share["busy"], share["owned"] - able


def _slot_time(share: Mapping[str, Any]) -> dict[str, Fraction]:
    busy, idle, startup = (Fraction(share["slots"] * part) for part in _times(share))
    headroom = max(Fraction(0), busy - sum(share["slot_ns"].values()))
    return {**_fractions(share["slot_ns"]), "headroom": headroom, "idle": idle, "startup": startup}


def _busy_time(share: Mapping[str, Any]) -> dict[str, Fraction]:
    busy, idle, startup = (Fraction(part) for part in _times(share))
    work = share["work"] if sum(share["work"].values()) else {"~overhead": 1}
    each = {who: busy * amount / sum(work.values()) for who, amount in work.items()}
    return {**each, "headroom": Fraction(0), "idle": idle, "startup": startup}


def _capacity(share: Mapping[str, Any]) -> dict[str, Fraction]:
    """In hours of the backend: what is done above the capacity of the busy time is taken from the idle time."""
    busy, idle, startup = (Fraction(part) for part in _times(share))
    work = {
        who: Fraction(amount) * 3_600_000_000_000 / share["capacity"] for who, amount in share["work"].items()
    }
    done = sum(work.values())
    if done > busy + idle:  # more than there is: all of it is used
        work = {who: amount * (busy + idle) / done for who, amount in work.items()}
        done = busy + idle
    headroom = max(Fraction(0), busy - done)
    return {**work, "headroom": headroom, "idle": busy + idle - done - headroom, "startup": startup}


def _fractions(amounts: Mapping[str, int]) -> dict[str, Fraction]:
    return {who: Fraction(amount) for who, amount in amounts.items()}


WEIGHTS = {"slot-time": _slot_time, "busy-time": _busy_time, "capacity": _capacity}
