"""A journal's checkpoint: size and root of its tree, signed, as a C2SP signed note. Pure.

    weighbridge/wq2lr7…k5a                                    origin: which writer's journal
    4711                                                      size: its lines up to here
    mB3k…=                                                    root of their Merkle tree, base64
    at_ns 1795863600000000000                                 when it was signed

    — weighbridge-journal 5q3+Lm…                             key's name; 4 bytes of its id, signature

Formats: c2sp.org/tlog-checkpoint and c2sp.org/signed-note, with Ed25519 (algorithm 0x01). A public key
is written as its *vkey*, `<name>+<key id, 8 hex digits>+<base64 of 0x01 and the key>`, which any tool
for such notes reads.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from metering.audit import merkle

ORIGIN_PREFIX = "weighbridge/"
LOGGED_AS = "journal checkpoint"  # the `event` of a log line that has a whole note: an anchor
_ED25519 = b"\x01"
_KEY_ID_BYTES = 4
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_KEY_NAME_PATTERN = re.compile(r"[^\s+]+")
_SIGNATURE_PATTERN = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+=*)")
_TEXT_PATTERN = re.compile(r"weighbridge/(?P<writer>\S+)\n(?P<size>0|[1-9][0-9]*)\n(?P<root>[A-Za-z0-9+/]{43}=)\n"
                           r"at_ns (?P<at_ns>0|[1-9][0-9]*)\n")  # fmt: skip


class NotANote(ValueError):
    """This is no checkpoint, or no vkey, of this form; the message says what is wrong."""


class Head(NamedTuple):
    """What a checkpoint says: the first `size` lines of this writer's journal have this root (32 bytes)."""

    writer: str
    size: int
    root: bytes
    at_ns: int

    @property
    def text(self) -> str:
        """The note's text, which is what is signed."""
        root = base64.b64encode(self.root).decode()
        return f"{ORIGIN_PREFIX}{self.writer}\n{self.size}\n{root}\nat_ns {self.at_ns}\n"


class Verifier(NamedTuple):
    """A public key, 32 bytes, under its name."""

    name: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """Its four bytes in a note: the front of SHA-256(name, newline, 0x01, key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:_KEY_ID_BYTES]

    @property
    def vkey(self) -> str:
        """As text, for a person or a tool."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"


class Signature(NamedTuple):
    """One signature line of a note."""

    name: str
    key_id: bytes
    signature: bytes


class Note(NamedTuple):
    """A checkpoint as it was read. text: the signed part; its signatures are not checked by reading it."""

    head: Head
    text: str
    signatures: tuple[Signature, ...]

    def signer(self, verifiers: Iterable[Verifier]) -> Verifier | None:
        """Which of these keys has signed it; None: none of them.

        A signature that names a key and is not made with it counts for nothing, whoever put it there.
        """
        for signature in self.signatures:
            for verifier in verifiers:
                if (signature.name, signature.key_id) == (verifier.name, verifier.key_id) and _is_good(
                    self.text, signature.signature, verifier
                ):
                    return verifier
        return None


class Signer:
    """A private key under its name; what it signs, `verifier` verifies."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        """Raises NotANote for a name with a space or a plus in it."""
        if not _KEY_NAME_PATTERN.fullmatch(name):
            raise NotANote(f"{name!r} is no name of a key: it has no spaces and no +")
        self.verifier = Verifier(name, private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        self._private = private

    def sign(self, head: Head) -> str:
        """The signed note."""
        text = head.text
        signed = base64.b64encode(self.verifier.key_id + self._private.sign(text.encode())).decode()
        return f"{text}\n— {self.verifier.name} {signed}\n"


def parse(note: str) -> Note:
    """Read a signed note. Raises NotANote."""
    text, gap, lines = note.partition("\n\n")
    text += "\n"
    if not gap or not lines.endswith("\n"):
        raise NotANote("a signed note is a text, an empty line, and lines of signatures")
    if (match := _TEXT_PATTERN.fullmatch(text)) is None:
        raise NotANote("the note's text is no checkpoint of a journal")
    try:
        root = base64.b64decode(match["root"], validate=True)
        signatures = tuple(_signature(line) for line in lines.removesuffix("\n").split("\n"))
    except binascii.Error as error:
        raise NotANote(f"not base64: {error}") from None
    assert len(root) == merkle.HASH_BYTES
    head = Head(match["writer"], int(match["size"]), root, int(match["at_ns"]))
    return Note(head, text, signatures)


def parse_vkey(text: str) -> Verifier:
    """Read a public key. Raises NotANote."""
    parts = text.strip().split("+", 2)  # base64 may hold more of them
    try:
        name, key_id, key = parts[0], bytes.fromhex(parts[1]), base64.b64decode(parts[2], validate=True)
    except (IndexError, ValueError):
        raise NotANote(f"{text!r} is no vkey: <name>+<key id>+<base64>") from None
    verifier = Verifier(name, key[1:])
    if key[:1] != _ED25519 or len(key) != 1 + _KEY_BYTES:
        raise NotANote(f"{text!r} is no key of Ed25519")
    if not _KEY_NAME_PATTERN.fullmatch(name) or key_id != verifier.key_id:
        raise NotANote(f"{text!r}: the key's id does not belong to its name and key")
    return verifier


def _signature(line: str) -> Signature:
    match = _SIGNATURE_PATTERN.fullmatch(line)
    data = base64.b64decode(match[2], validate=True) if match else b""
    # Base64 has spare bits at its end; a note in which they are set would be the same one in other bytes.
    if match is None or len(data) <= _KEY_ID_BYTES or base64.b64encode(data).decode() != match[2]:
        raise NotANote(f"{line!r} is no signature: — <key name> <base64>")
    return Signature(match[1], data[:_KEY_ID_BYTES], data[_KEY_ID_BYTES:])


def _is_good(text: str, signature: bytes, verifier: Verifier) -> bool:
    if len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(verifier.public).verify(signature, text.encode())
    except InvalidSignature:
        return False
    return True
