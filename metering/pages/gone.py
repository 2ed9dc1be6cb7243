"""The `gone` page: the counters of all writers that are dead.

`<state_dir>/pages/gone` is two lines: the SHA-256 of the second, in hex, and

    {"series":[["<family>",["<label value>",…],[<integer>,…]],…],"shapes":"…","writers":["<writer>",…]}

It names the writers that it holds, so nobody counts one twice: not a scrape that comes between its
renaming and the removal of a page, not a supervisor that died there. It can be made again from the
journals at any time, which is also what happens when it is missing, damaged, or of another layout. Where the front
of a journal is in the archive alone (metering/archive/trimming.py), that is asked for it.
"""

import hashlib
import json
import pathlib
from typing import NamedTuple

from metering import files
from metering.archive.archive import Archive
from metering.archive.objects import ArchiveError
from metering.journal.journal import Directory, directories
from metering.journal.readable import Readable
from metering.pages import families, pages
from metering.pages.families import Families, Series, Totals
from metering.pages.pages import PageError

NAME = "gone"


class Gone(NamedTuple):
    """writers: those whose counters are in `totals`, from their first line to their last."""

    writers: frozenset[str]
    totals: Totals


def load(pages_dir: pathlib.Path) -> Gone:
    """Raises PageError if the page is missing, damaged, or of another layout: `retire` makes it."""
    try:
        data = (pages_dir / NAME).read_bytes()
    except FileNotFoundError:
        raise PageError("there is no gone page") from None
    digest, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise PageError("the gone page is damaged")
    held = json.loads(body)
    if held["shapes"] != families.shapes():
        raise PageError("the families of the gone page are laid out otherwise")
    totals = {Series(name, tuple(labels)): tuple(value) for name, labels, value in held["series"]}
    return Gone(frozenset(held["writers"]), totals)


def retire(pages_dir: pathlib.Path, journal_dir: pathlib.Path, archive: Archive | None = None) -> list[str]:
    """Take the closed directories that the gone page does not hold yet into it; remove their pages.

    A directory is closed when it ends with a `stop` line, its writer's or the salvage's: call this
    after each salvage, and before the first scrape. One caller at a time: the supervisor.
    archive: None: it is not to be asked now. returns: the writers that were taken in. Raises OSError.

    What a dead writer counted is its page, which stands for the lines up to some seq, and the fold of
    the lines after that; or, if its page can't be had or isn't of this journal, of all its lines.

    Raises ArchiveError: lines of some that can't be had are needed. All others are taken in, if there was a gone
    page; a new one that lacks something would let counters fall, and is not made.
    """
    pages_dir.mkdir(parents=True, exist_ok=True)
    shown = pages.files(pages_dir)  # first: a worker makes its directory before its page
    found = directories(journal_dir)
    try:
        gone, stored = load(pages_dir), True
    except PageError:
        gone, stored = Gone(frozenset(), {}), False
    new, lacking = [], []
    totals = dict(gone.totals)
    for directory in found:
        if directory.writer in gone.writers or not directory.complete:
            continue
        try:
            families.merge(totals, counted(pages_dir, directory, archive))
        except ArchiveError as error:
            lacking.append(error)
        else:
            new.append(directory.writer)
    if lacking and not stored:
        raise lacking[0]
    held = gone.writers.union(new)
    if new or not stored:
        _store(pages_dir, Gone(held, totals))
    journalled = {one.writer for one in found}
    for path in shown:
        # A dead worker's page without a journal is of a journal that somebody removed.
        if path.stem in held or (path.stem not in journalled and not pages.is_live(path)):
            path.unlink()
    if lacking:
        raise lacking[0]
    return new


def counted(pages_dir: pathlib.Path, directory: Directory, archive: Archive | None = None) -> Totals:
    """The counters of a closed directory: its page, if that is of this journal, and the lines behind it.

    Raises ArchiveError: lines that it takes are neither here nor to be had from the archive.
    """
    try:
        page = pages.read(pages.path_of(pages_dir, directory.writer))
    except (FileNotFoundError, PageError):
        return _fold(directory, archive)
    tail = Families()
    lines = directory.records(max(0, page.seq - 1))
    if page.seq > 0:
        # After a crash of the host a page may be ahead of its journal. The journal is the truth.
        last = next(lines, None)
        if last is None or last[1:] != (page.seq, page.leaf):
            return _fold(directory, archive)
    elif directory.starts_after:
        return _fold(directory, archive)
    for line, _, _ in lines:
        tail.observe(line)
    totals = families.counters(page.totals)
    families.merge(totals, tail.cells.totals())
    return totals


def _fold(directory: Directory, archive: Archive | None) -> Totals:
    whole, last_seq = Families(), 0
    for line, seq, _ in _whole(directory, archive).records():
        whole.observe(line)
        last_seq = seq
    if 0 < directory.starts_after >= last_seq:
        raise ArchiveError(
            f"the archive has {directory.writer} up to seq {last_seq} only, and it begins after seq "
            f"{directory.starts_after} here"
        )
    return whole.cells.totals()


def _whole(directory: Directory, archive: Archive | None) -> Readable:
    if archive is not None:
        return archive.whole(directory)
    if directory.starts_after:
        raise ArchiveError(f"{directory.writer} up to seq {directory.starts_after} is in the archive alone")
    return directory


def _store(pages_dir: pathlib.Path, gone: Gone) -> None:
    """Replace the gone page, durably: the pages it stands for are removed next."""
    held = {
        "series": [[one.family, one.labels, value] for one, value in sorted(gone.totals.items())],
        "shapes": families.shapes(),
        "writers": sorted(gone.writers),
    }
    body = json.dumps(held, separators=(",", ":")).encode()
    files.put(pages_dir / NAME, hashlib.sha256(body).hexdigest().encode() + b"\n" + body, mode=0o644)
