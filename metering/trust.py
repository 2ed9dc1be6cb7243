"""Which keys may sign a journal, and when. Pure.

A checkpoint counts if a trusted key has signed it at a time at which that key was valid: from `from_ns` up to,
and without, `until_ns`. `ended_because` says why a key ended. A stolen one is a case of its own: whoever has it can
also write an earlier time into a note, so what it signed before it ended counts only where something else, signed or
kept elsewhere, shows that it was there (metering/verdict.py).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from metering import checkpoint
from metering.checkpoint import NotANote, Note, Verifier


class KeyValidity(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of keys.json: a public key, and when it may sign. until_ns: None while it has not ended."""

    ended_because: Literal["rotated", "stolen"] | None = None
    from_ns: int = 0
    until_ns: int | None = None
    vkey: str


class Signed(NamedTuple):
    """A note that counts. stolen: its key has been stolen since, so its time may be a lie."""

    verifier: Verifier
    stolen: bool


class Unsigned(NamedTuple):
    """A note that does not count, and why, in words for a person."""

    reason: str


class _Key(NamedTuple):
    verifier: Verifier
    validity: KeyValidity


class Trust:
    """The keys that are trusted.

    keys: of one key that stands there several times each entry narrows the others, so that a vkey given by hand and
    the same one in a list with dates count as the list says. Raises NotANote for a vkey that is none.
    """

    def __init__(self, keys: Iterable[KeyValidity]) -> None:
        self._keys = [_Key(checkpoint.parse_vkey(key.vkey), key) for key in keys]

    @property
    def vkeys(self) -> tuple[str, ...]:
        """The keys as text, each once."""
        return tuple(dict.fromkeys(key.verifier.vkey for key in self._keys))

    def judge(self, note: Note) -> Signed | Unsigned:
        """Does a note count?"""
        verifier = note.signer(key.verifier for key in self._keys)
        if verifier is None:
            named = ", ".join(f"{one.name} {one.key_id.hex()}" for one in note.signatures)
            return Unsigned(f"no trusted key has signed it (it names {named})")
        entries = [key.validity for key in self._keys if key.verifier == verifier]
        for entry in entries:
            if reason := _outside(entry, note.head.at_ns):
                return Unsigned(f"the key {verifier.key_id.hex()} {reason}")
        return Signed(verifier, any(entry.ended_because == "stolen" for entry in entries))


def _outside(key: KeyValidity, at_ns: int) -> str | None:
    if at_ns < key.from_ns:
        return f"signed it at {at_ns}, before it was valid (from_ns {key.from_ns})"
    if key.until_ns is not None and at_ns >= key.until_ns:
        return f"signed it at {at_ns}, after it had ended ({key.ended_because}, until_ns {key.until_ns})"
    return None


def parse_keys(text: bytes) -> Sequence[KeyValidity]:
    """Keys as a file has them: keys.json, or a vkey on each line (blank ones and those with # are left out).

    Raises NotANote.
    """
    if text.lstrip().startswith(b"["):
        try:
            found = msgspec.json.decode(text, type=list[KeyValidity])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotANote(f"this is no list of keys: {error}") from None
    else:
        lines = text.decode(errors="replace").splitlines()
        found = [
            KeyValidity(vkey=line.strip()) for line in lines if line.strip() and not line.startswith("#")
        ]
    for key in found:
        checkpoint.parse_vkey(key.vkey)
    return found
