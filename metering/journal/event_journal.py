"""The journal of a command: it tells what it does in a writer's directory of its own, whether or not a gateway runs.

    start (command: "export")  ─▶  its events  ─▶  stop  ─▶  end.note          durable when `tell` returns

Such a directory is like any other: chained, folded, archived and verified. It is made in one go; a command that
dies meanwhile leaves one that the next start closes, or none; one that finds the disk full leaves none.
"""

import importlib.metadata
import os
import pathlib
import pwd
import secrets
import time
from collections.abc import Callable, Sequence

from metering import files
from metering.audit import endnotes
from metering.audit.keyring import Keyring
from metering.audit.keys import Keys, KeysError, Tell
from metering.audit.notary import Notary, SigningKey
from metering.journal import chain, events, journal
from metering.journal.events import Changed, Happening
from metering.journal.journal import Journal
from metering.record import Line, Start, Stop
from metering.units import NS_PER_HOUR

_SEGMENT_BYTES_MAX = 1 << 30  # all of it is one turn, and a turn is never cut


def tell(
    root: pathlib.Path,
    command: str,
    happenings: Sequence[Happening | Changed],
    key: SigningKey,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> str:
    """Write these events, durably. root: <state_dir>/journal; it is made if need be.

    command: as the user calls it, as in `audit forget`. key: signs the whole of it.
    returns: the writer. Raises OSError: they are not written, or not signed.
    """
    writer = journal.new_writer_id(secrets.token_bytes(journal.WRITER_RANDOM_BYTES))
    lines: list[bytes] = []
    leaves = [chain.ZEROS]

    def add(make: Callable[[int, str], Line]) -> None:
        lines.append(chain.encode(make(len(leaves), leaves[-1])))
        leaves.append(chain.leaf(lines[-1][:-1]))

    def start(seq: int, prev: str) -> Start:
        return Start(
            at_ns=clock(),
            command=command,
            config_digest="",
            pid=os.getpid(),
            prev=prev,
            seq=seq,
            version=importlib.metadata.version("weighbridge"),
            worker=0,
            writer=writer,
        )

    add(start)
    for happening in happenings:
        add(happening.line(clock))
    add(lambda seq, prev: Stop(at_ns=clock(), prev=prev, reason="shutdown", seq=seq))
    opened = Journal.create(root, writer=writer, segment_bytes_max=_SEGMENT_BYTES_MAX)
    try:
        try:
            opened.write(b"".join(lines), 1, clock() // NS_PER_HOUR)
        except OSError:
            opened.close()
            opened.discard()
            raise
        opened.sync_work()()
        notary = Notary(writer, key)
        notary.add(leaves[1:])
        endnotes.write(opened.path, notary.end(clock()).note)
        files.give_to_owner(root, opened.path, *opened.path.iterdir())
    finally:
        opened.close()
    return writer


def telling(root: pathlib.Path, command: str, actor: str | None, keys: Keys) -> Tell:
    """Tells of a change of these keys; the first key of all replaces none, and is not told.

    What it is told in is signed by the old key, where that is still had and counts.
    """

    def tell_change(before: Keyring, after: Keyring) -> None:
        if not before.keys:
            return
        changes = before.changes(after)
        stolen = any(what == "stolen" for what, _ in changes)
        try:
            key = keys.signing_key(after if stolen else before)
        except KeysError:  # the operator has put the new one in its place
            key = keys.signing_key(after)
        told = [events.key_changed(actor=actor, what=what, key=one) for what, one in changes]
        tell(root, command, told, key)

    return tell_change


def user() -> str:
    """Who runs this command, as an event's actor: `cli:<user>`, by number where the system knows no name."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return f"cli:{name}"
