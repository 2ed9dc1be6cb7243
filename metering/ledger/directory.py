"""The directory: tenants and keys as versioned entries, of which the newest wins. Pure.

    entry a ──┐
    entry b ──┼─ join ─▶ the one of the highest (version, at_ns, data); revoked if any of them is
    entry b ──┘

`join` does not care for order, grouping or repeats, so any number of copies (a worker's memory, a gateway's disk, the
store, the journals) become the same by giving each other what they have. Two changes of one version, made where neither
could see the other, are told apart by their time, then by their bytes. What is revoked stays so, whatever comes.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from metering.record import Entry

Kind = Literal["key", "tenant"]
KINDS: tuple[Kind, ...] = ("key", "tenant")

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Entry)


def encode(entry: Entry) -> str:
    """An entry as the store and the copy on disk have it: one line of canonical JSON."""
    return _ENCODER.encode(entry).decode()


def decode(text: str | bytes) -> Entry | None:
    """The reverse; None: this is no entry, or one of a kind that is not known here."""
    try:
        entry = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if entry.version < 1 or not bytes(entry.data).startswith(b"{"):
        return None
    return msgspec.structs.replace(
        entry, data=msgspec.Raw(bytes(entry.data))
    )  # not all of the text it came in


def join(one: Entry, other: Entry) -> Entry:
    """What is so when both were said of the same thing."""
    assert one.field == other.field
    newest = max(one, other, key=_order)
    revoked = one.revoked or other.revoked
    return newest if newest.revoked == revoked else msgspec.structs.replace(newest, revoked=True)


def _order(entry: Entry) -> tuple[int, int, bytes]:
    return entry.version, entry.at_ns, bytes(entry.data)


class Copy:
    """One copy of the directory, in memory: as texts, of which a thousand take a megabyte."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by field

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, kind: Kind, name: str) -> Entry | None:
        """The entry of this tenant or key; None: there is none."""
        return self._entry(f"{kind}:{name}")

    def text(self, field: str) -> str:
        """An entry as `encode` gives it; "": there is none."""
        return self._texts.get(field, "")

    @property
    def texts(self) -> Mapping[str, str]:
        """All entries by their fields, likewise."""
        return self._texts

    def entries(self, kind: Kind) -> list[Entry]:
        """All of a kind, by name."""
        found = (decode(text) for text in self._texts.values())
        return sorted((one for one in found if one and one.kind == kind), key=lambda one: one.name)

    def take(self, entries: Iterable[Entry]) -> list[Entry]:
        """Join these with what is here. returns: the entries that are another now, as they are."""
        changed: dict[str, Entry] = {}
        for entry in entries:
            before = self._entry(entry.field)
            after = entry if before is None else join(before, entry)
            if after != before:
                changed[entry.field] = after
                self._texts[entry.field] = encode(after)
        return list(changed.values())

    def _entry(self, field: str) -> Entry | None:
        text = self._texts.get(field)
        return None if text is None else decode(text)

    def unread(self, texts: Iterable[str]) -> Iterator[Entry]:
        """Entries among these texts that do not stand here just so; what is no entry is passed over."""
        known = frozenset(self._texts.values())
        for text in texts:
            if text not in known and (entry := decode(text)) is not None:
                yield entry
