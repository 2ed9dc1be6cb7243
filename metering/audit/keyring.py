"""The keys that have signed a state directory's journals, made and ended. Pure.

`<state_dir>/keys/keys.json` is a list of them, in the order of making (metering/audit/keys.py has the private halves):

    [{"ended_because":"rotated","from_ns":…,"until_ns":…,"vkey":"weighbridge-journal+5q3f…+AW…"},
     {"ended_because":null,"from_ns":…,"until_ns":null,"vkey":"weighbridge-journal+…"}]

What they are worth: metering/audit/trust.py.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from metering.audit import checkpoint
from metering.audit.checkpoint import NotANote, Verifier
from metering.units import NS_PER_S

What = Literal["new", "rotated", "stolen"]
OVERLAP_NS = 120 * NS_PER_S
"""How long a key that is replaced is still good: each running worker signs the change with it, within a minute."""


class KeyringError(ValueError):
    """These are no keys, or a key can't be ended so; the message says what is wrong."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A public key and when it was good: from_ns ≤ t < until_ns (None: it still is)."""

    ended_because: Literal["rotated", "stolen"] | None = None
    from_ns: int
    until_ns: int | None = None
    vkey: str

    @property
    def verifier(self) -> Verifier:
        """The key itself. Raises NotANote if `vkey` is none."""
        return checkpoint.parse_vkey(self.vkey)

    @property
    def id(self) -> str:
        """Its id, 8 hex digits."""
        return self.verifier.key_id.hex()

    def is_good_at(self, at_ns: int) -> bool:
        """May it have signed then?"""
        return self.from_ns <= at_ns and (self.until_ns is None or at_ns < self.until_ns)


class Keyring:
    """All keys of a state directory, in the order of making. Immutable: what changes it returns another."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.keys = tuple(keys)

    @classmethod
    def parse(cls, data: bytes) -> "Keyring":
        """Read keys.json. Raises KeyringError."""
        try:
            keys = msgspec.json.decode(data, type=tuple[Key, ...])
            known = {key.id for key in keys}
        except (msgspec.DecodeError, UnicodeDecodeError, NotANote) as error:
            raise KeyringError(f"these are no keys: {error}") from None
        if len(known) != len(keys):
            raise KeyringError("a key stands there twice")
        return cls(keys)

    def encode(self) -> bytes:
        """The canonical form, with a newline."""
        return msgspec.json.encode(self.keys, order="deterministic") + b"\n"

    @property
    def current(self) -> Key | None:
        """The key to sign with: the newest that was not ended. None: there is none."""
        return next((key for key in reversed(self.keys) if key.until_ns is None), None)

    def find(self, key_id: str) -> Key:
        """The key of this id (8 hex digits). Raises KeyringError."""
        for key in self.keys:
            if key.id == key_id:
                return key
        raise KeyringError(f"there is no key {key_id}")

    def changes(self, after: "Keyring") -> list[tuple[What, Key]]:
        """What has happened to which key from here to `after`; the keys as they are then."""
        before = {key.id: key for key in self.keys}
        return [(key.ended_because or "new", key) for key in after.keys if before.get(key.id) != key]

    def with_new(self, vkey: str, now_ns: int) -> "Keyring":
        """With a new key, good from now on; the present one is good for OVERLAP_NS more. Raises KeyringError."""
        new = Key(vkey=vkey, from_ns=now_ns)
        if any(key.id == new.id for key in self.keys):
            raise KeyringError(f"the key {new.id} has been used before")
        ended = [
            key if key.until_ns is not None
            else msgspec.structs.replace(key, until_ns=now_ns + OVERLAP_NS, ended_because="rotated")
            for key in self.keys
        ]  # fmt: skip
        return Keyring([*ended, new])

    def with_stolen(self, key_id: str, at_ns: int) -> "Keyring":
        """With a key that was good only until it was stolen. Raises KeyringError if that was before it was made."""
        stolen = self.find(key_id)
        if at_ns < stolen.from_ns:
            raise KeyringError(f"the key {key_id} was made after that")
        until_ns = at_ns if stolen.until_ns is None else min(at_ns, stolen.until_ns)
        ended = msgspec.structs.replace(stolen, until_ns=until_ns, ended_because="stolen")
        return Keyring([ended if key is stolen else key for key in self.keys])
