"""What changed between two configurations, as events for the journal. Pure.

Keys are named by their paths, items of lists by their names (`backends[inf2-a].url`); values are not told, but for
prices, by which anybody's bill can be computed again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from gateway.configuration import config as cfg
from gateway.configuration.config import Config
from metering.cost.price_book import ON_DEMAND, Priceable
from metering.journal import events
from metering.journal.events import Happening

Tree = dict[str, Any]
Entry = dict[str, Any]


class _Model(msgspec.Struct, frozen=True):
    name: str
    rate_cards: tuple[Entry, ...] = ()


class _Prices(msgspec.Struct, frozen=True):
    """The part of a configuration that prices calls, as any version of it has it."""

    models: tuple[_Model, ...] = ()
    prices: tuple[Entry, ...] = ()


Priced = Mapping[tuple[Literal["rate_card", "instance_price"], str], str]
"""Entries as JSON, by what they are and what they price."""


def changes(before: bytes | None, config: Config) -> list[Happening]:
    """What a start has to tell. before: `remembered` of the last start's configuration; None: there was none.

    It may be another version's. Raises msgspec.MsgspecError if it is no configuration at all.
    """
    after = remembered(config)
    if before == after:
        return []
    kept = b"{}" if before is None else before
    last = msgspec.json.decode(kept, type=dict[str, Any])
    told = events.configured(
        digest=cfg.digest_of(after),
        before=None if before is None else cfg.digest_of(before),
        changed=() if before is None else _changed(last, msgspec.json.decode(after), ""),
    )
    return [told, *_repriced(_prices(kept), _prices(after))]


def remembered(config: Config) -> bytes:
    """What is kept of a configuration for the next start: what its digest is made of."""
    return cfg.to_json(cfg.without_store(config))


def _repriced(before: Priced, after: Priced) -> Iterator[Happening]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            what, of = key
            yield events.repriced(what=what, of=of, before=before.get(key), after=after.get(key))


def _prices(canonical: bytes) -> Priced:
    kept = msgspec.json.decode(canonical, type=_Prices)
    found: dict[tuple[Literal["rate_card", "instance_price"], str], str] = {}
    for model in kept.models:
        for card in model.rate_cards:
            hardware = card.get("instance_type") or card.get("family")
            found["rate_card", f"{model.name}/{hardware}@{card.get('date')}"] = _json(
                {"per_request": "0"} | card  # the first release had no such price
            )
    for price in kept.prices:
        whole = {"purchase_option": ON_DEMAND} | price  # the first release had no other
        of = Priceable(str(price.get("instance_type")), price.get("region"), whole["purchase_option"])
        found["instance_price", f"{of} {price.get('date')}"] = _json(whole)
    return found


def _json(entry: Entry) -> str:
    given = {name: value for name, value in entry.items() if value not in (None, {})}
    return msgspec.json.encode(given, order="sorted").decode()


def _changed(before: Any, after: Any, path: str) -> Iterator[str]:
    """Paths at which two trees differ, as deep as both go."""
    if isinstance(before, dict) and isinstance(after, dict):
        dot = "." if path else ""
        yield from _in_common(before, after, lambda key: f"{path}{dot}{key}")
        return
    named_before, named_after = _by_name(before), _by_name(after)
    if named_before is not None and named_after is not None:
        found = list(_in_common(named_before, named_after, lambda name: f"{path}[{name}]"))
        yield from found
        if found or list(named_before) == list(named_after):
            return
    if before != after:
        yield path


def _in_common(before: Tree, after: Tree, path_of: Callable[[str], str]) -> Iterator[str]:
    for key in sorted({*before, *after}):
        if key not in before or key not in after:
            yield path_of(key)
        else:
            yield from _changed(before[key], after[key], path_of(key))


def _by_name(items: Any) -> Tree | None:
    """A list of sections that have names, by these; None: it is none, or not each has one of its own."""
    if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
        return None
    named = {item["name"]: item for item in items}
    return named if len(named) == len(items) else None
