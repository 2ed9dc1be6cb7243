"""Check a proof of `weighbridge audit prove` without Weighbridge: SHA-256, Ed25519, and the key you trust.

    python check_proof.py proof.json --key 'weighbridge-journal+5q3f0a1b+AW…'

Exit 0: these lines are in the journal that the key's owner has signed, at this place. 1: that is not shown.
It needs Python and the package `cryptography`. Formats: RFC 6962 (leaves and nodes), RFC 9162 section 2.1.3.2
(the path), c2sp.org/signed-note and c2sp.org/tlog-checkpoint (the note).
"""

import argparse
import base64
import hashlib
import json
import pathlib
import sys
import time

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class Wrong(Exception):
    """The proof does not prove what it says; the message says where."""


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise Wrong(otherwise)


def root_from(line: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root of a tree of `size` leaves that has this line's leaf at `index`."""
    expect(0 <= index < size, f"there is no leaf {index} among {size}")
    node, last = hashlib.sha256(b"\x00" + line).digest(), size - 1
    for beside in path:
        expect(last > 0, "the path is too long")
        if index & 1 or index == last:
            node = hashlib.sha256(b"\x01" + beside + node).digest()
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            node = hashlib.sha256(b"\x01" + node + beside).digest()
        index, last = index >> 1, last >> 1
    expect(last == 0, "the path is too short")
    return node


def signed_text(note: str, vkeys: list[str]) -> tuple[str, str]:
    """The note's text, and the one of these keys that has signed it."""
    text, gap, signatures = note.partition("\n\n")
    expect(bool(gap), "the note has no signature")
    text += "\n"
    for vkey in vkeys:
        name, key_id, key = vkey.split("+", 2)
        public = base64.b64decode(key, validate=True)
        digest = hashlib.sha256(name.encode() + b"\n" + public).digest()[:4]
        expect(public[:1] == b"\x01" and digest.hex() == key_id, f"{vkey} is no vkey of Ed25519")
        for line in signatures.splitlines():
            dash, _, rest = line.partition(" ")
            signer, _, data = rest.partition(" ")
            signature = base64.b64decode(data, validate=True)
            if (dash, signer, signature[:4]) != ("—", name, digest):
                continue
            try:
                Ed25519PublicKey.from_public_bytes(public[1:]).verify(signature[4:], text.encode())
            except InvalidSignature:
                continue
            return text, vkey
    raise Wrong("no key that was given has signed the note")


def check(proof: dict, vkeys: list[str]) -> list[str]:
    """What the proof shows, in words. Raises Wrong, and KeyError, TypeError, ValueError for what is no proof."""
    text, vkey = signed_text(proof["note"], vkeys)
    origin, size, root, at_ns, end = text.split("\n")
    expect(not end and at_ns.startswith("at_ns "), "the note is no checkpoint")
    expect(origin == f"weighbridge/{proof['writer']}", "the note is of another writer")
    expect(proof["call_id"].startswith(proof["writer"] + "-"), "the call is of another writer")
    expect(len(proof["lines"]) > 0, "it has no lines")
    shown = []
    for proven in proof["lines"]:
        line = proven["line"].encode()
        path = [bytes.fromhex(node) for node in proven["path"]]
        told = json.loads(line)
        expect(told["call_id"] == proof["call_id"], "a line is of another call")
        expect(told["kind"] in ("admitted", "call"), "a line is neither an admission nor a record")
        expect(told["seq"] == proven["index"] + 1, "a line is of another place")
        found = root_from(line, proven["index"], int(size), path)
        expect(
            base64.b64encode(found).decode() == root,
            f"seq {told['seq']} is not in the journal that was signed",
        )
        shown.append(f"{told['kind']} line of {told['call_id']}, seq {told['seq']} of {size} signed lines")
    seconds, ns = divmod(int(at_ns.removeprefix("at_ns ")), 10**9)
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return [*shown, f"signed at {when}.{ns:09d}Z by {vkey}"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proof", type=pathlib.Path)
    parser.add_argument(
        "--key", action="append", required=True, help="a vkey that you trust; may be given again"
    )
    args = parser.parse_args()
    try:
        shown = check(json.loads(args.proof.read_text("utf-8")), args.key)
    except (Wrong, KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        print(f"not proven: {error if isinstance(error, Wrong) else repr(error)}")
        return 1
    print("\n".join(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
