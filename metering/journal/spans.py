"""Segments by their time: which of them may hold lines of a period, here and of what the archive alone has."""

import concurrent.futures
import functools
import io
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from metering.archive.archive import Archive
from metering.journal import chain, segments
from metering.journal.journal import Directory
from metering.journal.segments import Blocks
from metering.units import NS_PER_HOUR

CLOCK_SLACK_NS = 24 * NS_PER_HOUR
"""A segment is passed over by its time only if that is further than this from what is asked: clocks are set back."""
_MANIFESTS_AT_ONCE = 16
"""Requests to the archive: there is a manifest for each hour, of months perhaps."""


class Span(NamedTuple):
    """A segment. begin_ns: when its first line was made; 0: it has none.

    archived_bytes: to be fetched; 0: it is here.
    """

    begin_ns: int
    writer: str
    first_seq: int
    archived_bytes: int
    read: Callable[[], bytes]


def of_period(directory: Directory, archive: Archive | None, from_ns: int, to_ns: int) -> list[Span]:
    """The segments of a directory that may hold lines with from_ns ≤ at_ns < to_ns, in order.

    archive: None: what is here alone. Raises OSError, ArchiveError.
    """
    here = [
        Span(_begin_ns(path), directory.writer, first_seq, 0, functools.partial(segments.read, path))
        for first_seq, path in directory.segment_paths()
    ]
    after = directory.starts_after  # asked second: the front may be trimmed meanwhile
    there = list(_archived(directory.writer, archive, after)) if archive is not None and after else []
    spans = there + [span for span in here if span.first_seq > after]
    return [
        span
        for number, span in enumerate(spans)
        if span.begin_ns < to_ns + CLOCK_SLACK_NS
        and not (number + 1 < len(spans) and 0 < spans[number + 1].begin_ns < from_ns - CLOCK_SLACK_NS)
    ]


def _archived(writer: str, archive: Archive, last_seq: int) -> Iterator[Span]:
    """Those that begin up to `last_seq`."""
    archived = archive.directory(writer)
    first_seqs = [one for one in archived.first_seqs if one <= last_seq]
    with concurrent.futures.ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as pool:
        manifests = list(pool.map(archived.manifest, first_seqs))
    for one in manifests:
        read = functools.partial(_unpacked, functools.partial(archived.fetch, one.first_seq))
        yield Span(one.first_ns or 0, writer, one.first_seq, one.segment.bytes, read)


def _unpacked(fetch: Callable[[], bytes]) -> bytes:
    return b"".join(segments.unpacked(io.BytesIO(fetch())))


def _begin_ns(path: pathlib.Path) -> int:
    try:
        return chain.link(chain.first_line(Blocks(path))).at_ns
    except chain.NotALine:
        return 0
