"""Lives of a store, and who has been folded in which. Pure.

    wb:1:epoch              this life of the store: random, renewed when a part of its data is seen to be lost
    wb:1:{T}:meta  epoch    in which the tenant's keys were begun, or compared
                   ready    the epoch in which every known writer had been folded
    wb:1:writers            writer → the epoch in which its whole journal was compared and folded

A tenant is *ready* while all three name one epoch. Whoever folds a journal reads the epoch first and states it
last, so what was lost in between leaves an old name behind, and nothing is ready too early. What can't be seen
by any of this is a store that goes back a few seconds without losing a key, until a mark is found behind.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from metering.ledger.ledger import hour_text
from metering.units import NS_PER_HOUR

NO_EPOCH = ""
"""Of a store, or a tenant, that has none yet, or has none any more."""

_FOREVER_NS = 2**63 - 1


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger's gateways know of one writer; the value of its field in `wb:1:writers`, as JSON.

    behind: tenants whose streams could not be folded; epoch: in which all others were.
    hour: the last hour it has a posting in, `yyyymmddhh`, once it is closed; "" if it has none.
    seq: its last line, or the last that was folded while it is open; seen_ns: when this was stated.
    state: `gone` is said by a person, of a journal that nobody will ever find: it is waited for no more. A person need
    not say when (seen_ns 0): a gateway that sees it does.
    """

    behind: tuple[str, ...] = ()
    epoch: str = NO_EPOCH
    host: str
    hour: str = ""
    seen_ns: int
    seq: int
    state: Literal["open", "closed", "gone"]


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's `meta`. floor: `yyyymmddhh`; hours below it are closed. "" where there is none."""

    epoch: str = NO_EPOCH
    floor: str = ""
    ready: str = NO_EPOCH


def is_ready(epoch: str, meta: Meta) -> bool:
    """Does the store hold all that the known journals say of this tenant, but for the last moments?"""
    return epoch != NO_EPOCH and epoch == meta.epoch == meta.ready


def unfolded(epoch: str, writers: Mapping[str, Writer], tenant: str) -> list[str]:
    """The writers that keep a tenant from being ready in this epoch, by name."""
    return sorted(
        name
        for name, one in writers.items()
        if one.state != "gone" and (one.epoch != epoch or tenant in one.behind)
    )


def answered(epoch: str, writers: Mapping[str, Writer]) -> frozenset[str]:
    """Writers for whom somebody has answered in this epoch: their gateway compared them, or a person gave them up."""
    return frozenset(
        name for name, one in writers.items() if one.state == "gone" or one.epoch == epoch != NO_EPOCH
    )


def below(writers: Mapping[str, Writer], floor: str) -> list[str]:
    """Writers whose marks can go, for all that they may have a posting in is below the floor.

    Those that are closed and folded, by their last hour; those that were given up, by the hour when that was said. What
    was spent in a month is kept until all of it is below: so are the marks that keep it from being folded twice.
    """
    return sorted(name for name, one in writers.items() if _is_below(one, floor))


def _is_below(one: Writer, floor: str) -> bool:
    if one.state == "gone":
        return 0 < one.seen_ns <= _FOREVER_NS and _month(hour_text(one.seen_ns // NS_PER_HOUR)) < _month(
            floor
        )
    return (
        one.state == "closed"
        and not one.behind
        and one.epoch != NO_EPOCH
        and _month(one.hour) < _month(floor)
    )


def _month(hour: str) -> str:
    """Of an hour, `yyyymmddhh`."""
    return hour[:6]


def undated(writers: Mapping[str, Writer], now_ns: int) -> dict[str, Writer]:
    """Writers that were given up, and nobody said when, with a time: now, or the newest that anybody has stated.

    A gateway whose clock is behind must not let one go early, whose mark is all that keeps its records from being
    folded twice.
    """
    newest_ns = max((one.seen_ns for one in writers.values()), default=0)
    return {
        name: msgspec.structs.replace(one, seen_ns=max(now_ns, newest_ns))
        for name, one in writers.items()
        if one.state == "gone" and one.seen_ns <= 0
    }


def news(stated: Mapping[str, Writer], known: Mapping[str, Writer]) -> dict[str, Writer]:
    """What of `stated` differs from `known` in more than the time of stating."""
    return {
        name: one
        for name, one in stated.items()
        if name not in known or msgspec.structs.replace(known[name], seen_ns=one.seen_ns) != one
    }


def decode(fields: Mapping[str, str]) -> dict[str, Writer]:
    """The writers of a store. An entry that is none is a writer of which nothing is known: it was never folded."""
    return dict(_entries(fields))


def _entries(fields: Mapping[str, str]) -> Iterable[tuple[str, Writer]]:
    for name, text in fields.items():
        try:
            yield name, msgspec.json.decode(text, type=Writer)
        except msgspec.MsgspecError:
            yield name, Writer(host="", seen_ns=0, seq=0, state="open")


def encode(writer: Writer) -> str:
    """An entry as the store keeps it."""
    return msgspec.json.encode(writer, order="sorted").decode()
