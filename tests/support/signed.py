"""Signed journals for tests: directories with checkpoints, segments, an end.note and keys, made from the pure parts."""

import base64
import pathlib
from collections.abc import Callable, Iterable, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering import record
from metering.audit import merkle
from metering.audit.checkpoint import Head, Signer
from metering.journal import chain
from metering.journal.journal import LOCK, segment_name
from metering.record import Ended
from tests.support import journals
from tests.support.journals import AT_NS, WRITER, Make

KEY_NAME = "weighbridge-journal"
END_NOTE = "end.note"


def signer(number: int = 1) -> Signer:
    """For each number always the same."""
    return Signer(KEY_NAME, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def leaves(lines: Iterable[bytes]) -> list[bytes]:
    return [bytes.fromhex(chain.leaf(line.removesuffix(b"\n"))) for line in lines]


def head(writer: str, lines: Sequence[bytes], at_ns: int = AT_NS) -> Head:
    return Head(writer, len(lines), merkle.root(leaves(lines)), at_ns)


def start(writer: str = WRITER, ended: Iterable[Ended] = (), at_ns: int = AT_NS) -> Make:
    return lambda seq, prev: msgspec.structs.replace(
        journals.start(writer=writer, at_ns=at_ns)(seq, prev),  # type: ignore[type-var]
        ended=tuple(ended),
    )


def calls(writer: str, count: int, *, at_ns: int = AT_NS) -> list[Make]:
    makes: list[Make] = []
    for n in range(1, count + 1):
        makes += [
            journals.admitted(f"{writer}-{n}", at_ns=at_ns),
            journals.call(f"{writer}-{n}", at_ns=at_ns),
        ]
    return makes


def event(topic: str, **data: str) -> Make:
    return lambda seq, prev: record.Event(actor=None, at_ns=AT_NS, data=data, prev=prev, seq=seq, topic=topic)


def signed_lines(
    makes: Sequence[Make],
    *,
    writer: str = WRITER,
    every: int = 4,
    sign: Signer | Callable[[int], Signer] | None = None,
    at_ns: Callable[[int], int] = lambda _: AT_NS,
) -> list[bytes]:
    """Lines with a checkpoint after each `every` lines, and before the last line if that is a stop.

    sign, at_ns: the signer, and the time, of the checkpoint of this size.
    """
    lines: list[bytes] = []
    prev = chain.ZEROS

    def put(make: Make) -> None:
        nonlocal prev
        lines.append(chain.encode(make(len(lines) + 1, prev)))
        prev = chain.leaf(lines[-1][:-1])

    def put_checkpoint() -> None:
        signing = sign(len(lines)) if callable(sign) else sign or signer()
        note = signing.sign(head(writer, lines, at_ns(len(lines))))
        put(lambda seq, prev: record.Checkpoint(at_ns=AT_NS, note=note, prev=prev, seq=seq))

    for number, make in enumerate(makes, start=1):
        last = number == len(makes) and isinstance(make(1, chain.ZEROS), record.Stop)
        if last or (len(lines) + 1) % (every + 1) == 0:
            put_checkpoint()
        put(make)
    return lines


def write(
    root: pathlib.Path,
    lines: Sequence[bytes],
    *,
    writer: str = WRITER,
    per_segment: int = 1_000,
    note: Signer | None = None,
    note_at_ns: int = AT_NS,
) -> pathlib.Path:
    """A writer's directory with these lines. note: signs its end.note; None: it has none."""
    path = root / writer
    path.mkdir(parents=True)
    (path / LOCK).touch()
    for first in range(0, len(lines), per_segment):
        (path / segment_name(first + 1)).write_bytes(b"".join(lines[first : first + per_segment]))
    if note is not None:
        write_end_note(path, lines, note, at_ns=note_at_ns)
    return path


def write_end_note(
    path: pathlib.Path, lines: Sequence[bytes], sign: Signer | None = None, at_ns: int = AT_NS
) -> None:
    note = (sign or signer()).sign(head(path.name, lines, at_ns))
    (path / END_NOTE).write_text(note, encoding="utf-8")


def write_keys(state_dir: pathlib.Path, *entries: dict[str, object]) -> pathlib.Path:
    """keys.json; without entries with the first signer's key alone."""
    plain = {"ended_because": None, "from_ns": 0, "until_ns": None, "vkey": signer().verifier.vkey}
    path = state_dir / "keys" / "keys.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode([plain | entry for entry in entries or ({},)], order="sorted"))
    return path


def closed(
    state_dir: pathlib.Path,
    *,
    writer: str = WRITER,
    count: int = 6,
    per_segment: int = 6,
    ended: Iterable[Ended] = (),
    sign: Signer | None = None,
) -> list[bytes]:
    """A whole, signed and closed journal with its keys; returns its lines."""
    makes = [start(writer, ended), *calls(writer, count), journals.stop()]
    lines = signed_lines(makes, writer=writer, sign=sign)
    write(state_dir / "journal", lines, writer=writer, per_segment=per_segment, note=sign or signer())
    if not (state_dir / "keys").exists():
        write_keys(state_dir)
    return lines


def ended(writer: str, lines: Sequence[bytes]) -> Ended:
    """What a later start says of a journal of these lines."""
    root = base64.b64encode(merkle.root(leaves(lines))).decode()
    return Ended(root=root, size=len(lines), writer=writer)
