"""`audit prove`: the proof of a call's lines, from the journal that has them.

The note is the first one that covers them: a checkpoint behind them, or the end.note. Lines are read once more from the
journal's start, chained, so that the proof is not made from what the note has not signed.
"""

import pathlib

from metering.audit import audit, checkpoint, merkle
from metering.audit.checkpoint import NotANote, Note
from metering.audit.endnotes import END_NOTE
from metering.audit.proof import PathBuilder, Proof, ProvenLine
from metering.audit.sources import front_of
from metering.audit.trust import Trust, Unsigned
from metering.journal.journal import Directory
from metering.record import Checkpoint

_LEAVES_AT_ONCE = 1024


class NotProven(Exception):
    """There is the call, and no proof of it; the message says why."""


def prove(root: pathlib.Path, call_id: str, trust: Trust) -> Proof:
    """The proof of this call's lines. root: <state_dir>/journal. Raises NotFound, NotProven, OSError."""
    found = audit.find(root, call_id)
    directory, seqs = Directory(found.file.parent), {found.line.seq}
    admission = audit.admission(directory, call_id)
    if admission is not None and admission.seq > directory.starts_after:
        seqs.add(admission.seq)
    text, note = _note_over(directory, found.line.seq)
    proven = _proven(directory, sorted(seqs), note)
    judged = trust.judge(note)
    return Proof(
        call_id=call_id,
        lines=tuple(proven),
        note=text,
        vkey=None if isinstance(judged, Unsigned) else judged.verifier.vkey,
        writer=directory.writer,
    )


def _note_over(directory: Directory, seq: int) -> tuple[str, Note]:
    """The first note that signs this line."""
    for chained in directory.chained(seq):
        if isinstance(chained.line, Checkpoint):
            return chained.line.note, _parsed(chained.line.note, directory.file_of(chained.seq))
    path = directory.path / END_NOTE
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise NotProven(
            f"no checkpoint of {directory.writer} covers seq {seq} yet; one is due each minute"
        ) from None
    except UnicodeDecodeError:
        raise NotProven(f"{path} is no note") from None
    return text, _parsed(text, path)


def _parsed(text: str, path: pathlib.Path) -> Note:
    try:
        return checkpoint.parse(text)
    except NotANote as error:
        raise NotProven(f"{path}: {error}") from None


def _proven(directory: Directory, seqs: list[int], note: Note) -> list[ProvenLine]:
    size, front = note.head.size, front_of(directory)
    if seqs[-1] > size:
        raise NotProven(f"the note behind seq {seqs[-1]} signs no more than {size} lines")
    builders = {seq: PathBuilder(seq - 1, size, front) for seq in seqs}
    tree = merkle.Tree(front.size, front.frontier)
    lines: dict[int, str] = {}
    leaves: list[bytes] = []

    def put() -> None:
        tree.extend(leaves)
        for builder in builders.values():
            builder.add(leaves)
        leaves.clear()

    for chained in directory.chained():
        if chained.seq > size:
            break
        if chained.seq in builders:
            lines[chained.seq] = chained.data.decode()
        leaves.append(bytes.fromhex(chained.leaf))
        if len(leaves) == _LEAVES_AT_ONCE:
            put()
    put()
    if tree.size != size or tree.root() != note.head.root:
        raise NotProven(f"the journal of {directory.writer} is not what its note signs: verify it")
    return [
        ProvenLine(index=seq - 1, line=lines[seq], path=tuple(node.hex() for node in builders[seq].path()))
        for seq in seqs
    ]
