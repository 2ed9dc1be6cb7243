"""Which keys may sign a journal, and when. Pure.

A checkpoint counts if a trusted key has signed it at a time at which that key was valid: from `from_ns` up to,
and without, `until_ns`. `ended_because` says why a key ended. A stolen one is a case of its own: whoever has it can
also write an earlier time into a note, so what it signed before it ended counts only where something else, signed or
kept elsewhere, shows that it was there (metering/audit/verdict.py).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from metering.audit import checkpoint
from metering.audit.checkpoint import NotANote, Note, Verifier
from metering.audit.keyring import Key, Keyring, KeyringError


class Signed(NamedTuple):
    """A note that counts. stolen: its key has been stolen since, so its time may be a lie."""

    verifier: Verifier
    stolen: bool


class Unsigned(NamedTuple):
    """A note that does not count, and why, in words for a person."""

    reason: str


class Trust:
    """The keys that are trusted.

    keys: of one key that stands there several times each entry narrows the others, so that a vkey given by hand and
    the same one in a list with dates count as the list says. Raises NotANote for a vkey that is none.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = [(key.verifier, key) for key in keys]

    @property
    def vkeys(self) -> tuple[str, ...]:
        """The keys as text, each once."""
        return tuple(dict.fromkeys(verifier.vkey for verifier, _ in self._keys))

    def judge(self, note: Note) -> Signed | Unsigned:
        """Does a note count?"""
        verifier = note.signer(verifier for verifier, _ in self._keys)
        if verifier is None:
            named = ", ".join(f"{one.name} {one.key_id.hex()}" for one in note.signatures)
            return Unsigned(f"no trusted key has signed it (it names {named})")
        entries = [key for known, key in self._keys if known == verifier]
        for entry in entries:
            if reason := _outside(entry, note.head.at_ns):
                return Unsigned(f"the key {verifier.key_id.hex()} {reason}")
        return Signed(verifier, any(entry.ended_because == "stolen" for entry in entries))


def _outside(key: Key, at_ns: int) -> str | None:
    """Why a key was not good then; None: it was."""
    if key.is_good_at(at_ns):
        return None
    if at_ns < key.from_ns:
        return f"signed it at {at_ns}, before it was valid (from_ns {key.from_ns})"
    return f"signed it at {at_ns}, after it had ended ({key.ended_because}, until_ns {key.until_ns})"


def parse_keys(text: bytes) -> Sequence[Key]:
    """Keys as a file has them: keys.json, or a vkey on each line (blank ones and those with # are left out).

    Raises NotANote.
    """
    if text.lstrip().startswith(b"["):
        try:
            return Keyring.parse(text).keys
        except KeyringError as error:
            raise NotANote(str(error)) from None
    lines = text.decode(errors="replace").splitlines()
    vkeys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [Key(vkey=checkpoint.parse_vkey(vkey).vkey, from_ns=0) for vkey in vkeys]
