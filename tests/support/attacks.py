"""What somebody who can write a state directory can do to its journals, and what that is found as.

The scene: two journals of one state directory, the second begun after the first had ended; its start line names it.
"""

import pathlib
import shutil
from collections.abc import Callable
from typing import NamedTuple

from metering.audit.findings import Verdict, What
from metering.journal import chain
from metering.journal.journal import segment_name
from tests.support import journals, signed
from tests.support.journals import AT_NS, WRITER
from tests.support.signed import END_NOTE, signer

OTHER = "w" + "b" * 16
PER_SEGMENT = 6


def scene(state_dir: pathlib.Path) -> None:
    first = signed.closed(state_dir, per_segment=PER_SEGMENT)
    signed.closed(state_dir, writer=OTHER, ended=[signed.ended(WRITER, first)], per_segment=PER_SEGMENT)


def first_of(state_dir: pathlib.Path) -> pathlib.Path:
    return state_dir / "journal" / WRITER


def lines_of(path: pathlib.Path) -> list[bytes]:
    return b"".join(file.read_bytes() for file in sorted(path.glob("[0-9]*.jsonl"))).splitlines(keepends=True)


def replace_lines(path: pathlib.Path, lines: list[bytes], per_segment: int = PER_SEGMENT) -> None:
    """Write these lines instead of those that are there, with names that fit."""
    for file in path.glob("[0-9]*.jsonl"):
        file.unlink()
    for first in range(0, len(lines), per_segment):
        (path / segment_name(first + 1)).write_bytes(b"".join(lines[first : first + per_segment]))


def edited(edit: Callable[[list[bytes]], object]) -> Callable[[pathlib.Path], None]:
    """An attack that edits the lines of the first journal in place, cut into the same segments."""

    def attack(state_dir: pathlib.Path) -> None:
        lines = lines_of(first_of(state_dir))
        edit(lines)
        replace_lines(first_of(state_dir), lines)

    return attack


def flip(lines: list[bytes]) -> None:
    lines[7] = lines[7].replace(b'"tenant":"acme"', b'"tenant":"bcme"')


def swap(lines: list[bytes]) -> None:
    lines[7], lines[8] = lines[8], lines[7]


def swap_next_but_one(lines: list[bytes]) -> None:
    lines[6], lines[8] = lines[8], lines[6]


def duplicate(lines: list[bytes]) -> None:
    lines.insert(8, lines[7])


def insert(lines: list[bytes]) -> None:
    """A line that continues the one before; nothing continues it."""
    link = chain.link(lines[7])
    line = journals.tick()(link.seq + 1, chain.leaf(lines[7][:-1]))
    lines.insert(8, chain.encode(line))


def index_of_checkpoint(lines: list[bytes], number: int) -> int:
    return [index for index, line in enumerate(lines) if b'"kind":"checkpoint"' in line][number]


def truncate_before_a_checkpoint(lines: list[bytes]) -> None:
    del lines[index_of_checkpoint(lines, 2) :]


def truncate_after_a_checkpoint(lines: list[bytes]) -> None:
    del lines[index_of_checkpoint(lines, 2) + 1 :]


def drop_segment(number: int) -> Callable[[pathlib.Path], None]:
    def attack(state_dir: pathlib.Path) -> None:
        sorted(first_of(state_dir).glob("[0-9]*.jsonl"))[number].unlink()

    return attack


def repeat_segment(state_dir: pathlib.Path) -> None:
    path = first_of(state_dir)
    shutil.copy(path / segment_name(1), path / segment_name(3))


def drop_directory(state_dir: pathlib.Path) -> None:
    shutil.rmtree(first_of(state_dir))


def drop_end_note(state_dir: pathlib.Path) -> None:
    (first_of(state_dir) / END_NOTE).unlink()


def drop_stop_and_end_note(state_dir: pathlib.Path) -> None:
    edited(lambda lines: lines.pop())(state_dir)
    drop_end_note(state_dir)


def drop_keys(state_dir: pathlib.Path) -> None:
    (state_dir / "keys" / "keys.json").unlink()


def splice(state_dir: pathlib.Path) -> None:
    """The front of one journal and the rest of the other."""
    other = lines_of(state_dir / "journal" / OTHER)
    edited(lambda lines: lines.__setitem__(slice(9, None), other[9:]))(state_dir)


def splice_and_chain(state_dir: pathlib.Path) -> None:
    """The same, with the chain made new: what the other's checkpoints sign is not there."""
    lines = lines_of(first_of(state_dir))[:9]
    for data in lines_of(state_dir / "journal" / OTHER)[9:]:
        line = chain.decode(data)
        assert line is not None
        prev = chain.leaf(lines[-1][:-1])
        lines.append(chain.encode(type(line)(**{**_fields(line), "prev": prev})))
    replace_lines(first_of(state_dir), lines)


def _fields(line: object) -> dict[str, object]:
    return {name: getattr(line, name) for name in line.__struct_fields__}  # type: ignore[attr-defined]


def rename_directory(state_dir: pathlib.Path) -> None:
    first_of(state_dir).rename(state_dir / "journal" / ("w" + "c" * 16))


def rewritten(number: int) -> Callable[[pathlib.Path], None]:
    """Everything made anew with one call fewer, by a key of this number; the later start line too."""

    def attack(state_dir: pathlib.Path) -> None:
        shutil.rmtree(state_dir / "journal")
        first = signed.closed(state_dir, count=5, per_segment=PER_SEGMENT, sign=signer(number))
        ended = [signed.ended(WRITER, first)]
        signed.closed(state_dir, writer=OTHER, ended=ended, per_segment=PER_SEGMENT, sign=signer(number))

    return attack


def rewrite_first(state_dir: pathlib.Path) -> None:
    """The first journal made anew by the right key, and the later one left as it is."""
    shutil.rmtree(first_of(state_dir))
    signed.closed(state_dir, count=5, per_segment=PER_SEGMENT)


def rewrite_first_at_equal_length(state_dir: pathlib.Path) -> None:
    shutil.rmtree(first_of(state_dir))
    makes = [signed.start(), *signed.calls(WRITER, 6, at_ns=AT_NS + 1), journals.stop()]
    lines = signed.signed_lines(makes)
    signed.write(state_dir / "journal", lines, per_segment=PER_SEGMENT, note=signer())


def alter_end_note(state_dir: pathlib.Path) -> None:
    path = first_of(state_dir) / END_NOTE
    path.write_text(path.read_text().replace("at_ns 1", "at_ns 2"))


def foreign_end_note(state_dir: pathlib.Path) -> None:
    shutil.copy(state_dir / "journal" / OTHER / END_NOTE, first_of(state_dir) / END_NOTE)


def add_behind_the_stop(state_dir: pathlib.Path) -> None:
    last = sorted(first_of(state_dir).glob("[0-9]*.jsonl"))[-1]
    last.write_bytes(last.read_bytes() + b"{}\n")


def signed_after_it_was_stolen(state_dir: pathlib.Path) -> None:
    """The thief ends the journal once more, after the theft is known."""
    signed.write_keys(state_dir, {"until_ns": AT_NS + 5, "ended_because": "stolen"})
    path = first_of(state_dir)
    signed.write_end_note(path, lines_of(path), at_ns=AT_NS + 6)


def call_doubled(state_dir: pathlib.Path) -> None:
    """A forger with the key, who does not know the law."""
    makes = [signed.start(), *signed.calls(WRITER, 3), journals.call(f"{WRITER}-2"), journals.stop()]
    forge(state_dir, makes)


def admission_doubled(state_dir: pathlib.Path) -> None:
    makes = [signed.start(), *signed.calls(WRITER, 3), *signed.calls(WRITER, 1), journals.stop()]
    forge(state_dir, makes)


def record_without_admission(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(), journals.call(f"{WRITER}-9"), journals.stop()])


def admission_without_record(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(), journals.admitted(f"{WRITER}-1"), journals.stop()])


def call_of_another_writer(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(), *signed.calls(OTHER, 1), journals.stop()])


def no_start(state_dir: pathlib.Path) -> None:
    forge(state_dir, [*signed.calls(WRITER, 2), journals.stop()])


def second_start(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(), *signed.calls(WRITER, 2), signed.start(), journals.stop()])


def start_of_another(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(OTHER), *signed.calls(WRITER, 2), journals.stop()])


def second_stop(state_dir: pathlib.Path) -> None:
    forge(state_dir, [signed.start(), journals.stop(), *signed.calls(WRITER, 2), journals.stop()])


def line_of_no_kind(state_dir: pathlib.Path) -> None:
    """Chained and signed, and no `tick`."""
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 2)])
    prev = chain.leaf(lines[-1][:-1])
    lines.append(b'{"at_ns":1,"kind":"tick","prev":"%s","seq":%d,"v":1}\n' % (prev.encode(), len(lines) + 1))
    shutil.rmtree(state_dir / "journal")
    signed.write(state_dir / "journal", lines, note=signer())


def forge(state_dir: pathlib.Path, makes: list[journals.Make]) -> None:
    shutil.rmtree(state_dir / "journal")
    signed.write(state_dir / "journal", signed.signed_lines(makes), note=signer())


class Attack(NamedTuple):
    """What is done; what it is found as; what it makes of the whole."""

    do: Callable[[pathlib.Path], object]
    found: What
    verdict: Verdict = Verdict.TAMPERED

    def __repr__(self) -> str:
        return getattr(self.do, "__name__", "attack")


ATTACKS = {
    "flip a byte": Attack(edited(flip), What.CHAIN_BROKEN),
    "delete a line": Attack(edited(lambda lines: lines.pop(7)), What.LINES_MISSING),
    "insert a line": Attack(edited(insert), What.LINE_REPEATED),
    "swap two lines": Attack(edited(swap), What.LINES_MISSING),
    "swap two lines with one between": Attack(edited(swap_next_but_one), What.LINES_MISSING),
    "duplicate a line": Attack(edited(duplicate), What.LINE_REPEATED),
    "truncate before a checkpoint": Attack(edited(truncate_before_a_checkpoint), What.TOO_FEW_LINES),
    "truncate after a checkpoint": Attack(edited(truncate_after_a_checkpoint), What.TOO_FEW_LINES),
    "drop the first segment": Attack(drop_segment(0), What.LINES_MISSING),
    "drop a middle segment": Attack(drop_segment(1), What.LINES_MISSING),
    "drop the last segment": Attack(drop_segment(-1), What.TOO_FEW_LINES),
    "put in a segment": Attack(repeat_segment, What.LINE_REPEATED),
    "drop a directory": Attack(drop_directory, What.DIRECTORY_MISSING, Verdict.INCOMPLETE),
    "rename a directory": Attack(rename_directory, What.WRONG_WRITER),
    "splice two journals": Attack(splice, What.CHAIN_BROKEN),
    "splice two journals, the chain made new": Attack(splice_and_chain, What.WRONG_WRITER),
    "sign anew with another key": Attack(rewritten(2), What.NOT_SIGNED),
    "rewrite one journal with the old key": Attack(rewrite_first, What.TOO_FEW_LINES),
    "the same at equal length": Attack(rewrite_first_at_equal_length, What.ROOT_DIFFERS),
    "drop the stop": Attack(edited(lambda lines: lines.pop()), What.TOO_FEW_LINES),
    "drop the end.note": Attack(drop_end_note, What.NO_END_NOTE, Verdict.INCOMPLETE),
    "drop the stop and the end.note": Attack(drop_stop_and_end_note, What.TOO_FEW_LINES),
    "alter the end.note": Attack(alter_end_note, What.NOT_SIGNED),
    "another journal's end.note": Attack(foreign_end_note, What.WRONG_WRITER),
    "drop the keys": Attack(drop_keys, What.NO_KEYS, Verdict.INCOMPLETE),
    "add behind the stop": Attack(add_behind_the_stop, What.OUT_OF_PLACE),
    "sign with a stolen key": Attack(signed_after_it_was_stolen, What.NOT_SIGNED),
    "double a record": Attack(call_doubled, What.RECORD_DOUBLED),
    "double an admission": Attack(admission_doubled, What.ADMISSION_DOUBLED),
    "a record without admission": Attack(record_without_admission, What.RECORD_WITHOUT_ADMISSION),
    "an admission without record": Attack(admission_without_record, What.ADMISSION_WITHOUT_RECORD),
    "a call of another writer": Attack(call_of_another_writer, What.WRONG_WRITER),
    "no start": Attack(no_start, What.OUT_OF_PLACE),
    "a second start": Attack(second_start, What.OUT_OF_PLACE),
    "the start of another": Attack(start_of_another, What.WRONG_WRITER),
    "a second stop": Attack(second_stop, What.OUT_OF_PLACE),
    "a line that is none of its kind": Attack(line_of_no_kind, What.NOT_A_LINE),
}
