"""A writer's directory judged by what was signed of it. Imports nothing of the product.

`lines` and `checkpoints` read the files; a root is made by the plain definition of RFC 6962, section 2.1, and a
signature is checked with `cryptography` by the formats of c2sp.org.
"""

import base64
import hashlib
import json
import pathlib
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.oracle import files


class Read(NamedTuple):
    """A note as it was read and found to be signed."""

    writer: str
    size: int
    root: bytes
    at_ns: int


def lines(directory: pathlib.Path) -> list[bytes]:
    """All lines, without newlines: segments in order, then the salvage."""
    return [line for path in files.segments(directory) for line in files.read(path).split(b"\n")[:-1]]


def root(leaves: list[bytes]) -> bytes:
    """Of the tree of these leaves."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + root(leaves[:split]) + root(leaves[split:])).digest()


def read(note: str, vkey: str) -> Read:
    """A note that this key has signed; raises if it has not."""
    name, key_id, key = vkey.split("+", 2)
    text, _, signature = note.partition("\n\n")
    (line,) = signature.splitlines()
    dash, signer, signed = line.split(" ")
    raw = base64.b64decode(signed)
    assert (dash, signer, raw[:4].hex()) == ("—", name, key_id)
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key)[1:])
    public.verify(raw[4:], f"{text}\n".encode())
    origin, size, of_tree, extra = text.split("\n")
    return Read(
        origin.removeprefix("weighbridge/"),
        int(size),
        base64.b64decode(of_tree),
        int(extra.removeprefix("at_ns ")),
    )


def check(directory: pathlib.Path, *vkeys: str) -> list[int]:
    """Check each checkpoint line, and the note at the end if there is one. vkeys: one of them has signed each.

    returns: the seqs of the checkpoint lines. Fails with the first one that is wrong.
    """
    found = lines(directory)
    leaves = [hashlib.sha256(b"\0" + line).digest() for line in found]
    seqs = []
    for seq, line in enumerate(found, start=1):
        fields = json.loads(line)
        assert fields["seq"] == seq
        if fields["kind"] == "checkpoint":
            seqs.append(seq)
            _check(fields["note"], vkeys, directory.name, leaves[: seq - 1])
    end = directory / "end.note"
    if end.exists():
        assert json.loads(found[-1])["kind"] == "stop"
        _check(end.read_text(), vkeys, directory.name, leaves)
    return seqs


def _check(note: str, vkeys: tuple[str, ...], writer: str, leaves: list[bytes]) -> None:
    key_id = base64.b64decode(note.split()[-1])[:4].hex()
    (vkey,) = [vkey for vkey in vkeys if vkey.split("+")[1] == key_id]
    assert read(note, vkey)[:3] == (writer, len(leaves), root(leaves))
