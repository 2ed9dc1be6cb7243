"""The clerk's verification: once a day, and when somebody asks for it, all journals of the state directory.

    <state_dir>/verify.wanted     somebody asks; gone once it has begun
    <state_dir>/verify.json       how the last one ended: what /audit/v1/verify shows
    <state_dir>/verify-archive.json   how far the fronts that were trimmed here have been read in the archive

It is what `audit verify` does with the keys beside the journals; of what the archive alone has, so much at a time
(journal/fronts.py). In a thread of its own: it reads all there is, and the clerk's other duties do not wait for it.
"""

import logging
import pathlib
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from metering import files
from metering.archive.archive import Archive
from metering.audit import verify
from metering.audit.findings import Finding, Verdict, What, worst
from metering.audit.keyring import Key
from metering.audit.trust import Trust
from metering.audit.verdict import Keys, Report
from metering.journal.fronts import Fronts, Look
from metering.journal.journal import directories
from metering.logs import log
from metering.units import NS_PER_HOUR

WANTED = "verify.wanted"
RESULT = "verify.json"
FRONTS = "verify-archive.json"
FRONTS_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Of sealed segments, fetched from the archive at a time."""
INTERVAL_NS = 24 * NS_PER_HOUR
FINDINGS_MAX = 200

logger = logging.getLogger("weighbridge.clerk")


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How a verification ended. live: journals that were being written, which are never whole.

    archived: what was read in the archive, its findings left out; None: no archive is named.
    findings: FINDINGS_MAX at most, those of a journal that is being written left out.
    """

    archived: Look | None = None
    at_ns: int
    began_ns: int
    calls: int
    checkpoints: int
    findings: tuple[Finding, ...]
    findings_left_out: int
    journals: int
    keys: Keys
    lines: int
    live: int
    records: int
    verdict: Verdict


class VerifyDuty:
    """archive: None: there is none. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(
        self,
        state_dir: pathlib.Path,
        clock: Callable[[], int] = time.time_ns,
        archive: Archive | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._archive = archive
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def verify_if_due(self) -> None:
        """Begin, if it is time and none is under way. Raises what went wrong with the one before."""
        if self._thread is not None and self._thread.is_alive():
            return
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._is_due():
            (self._state_dir / WANTED).unlink(missing_ok=True)
            self._thread = threading.Thread(target=self._run, name="verify", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until the one that is under way has ended."""
        if self._thread is not None:
            self._thread.join()

    def _is_due(self) -> bool:
        if (self._state_dir / WANTED).exists():
            return True
        try:
            last = msgspec.json.decode((self._state_dir / RESULT).read_bytes(), type=Verification)
        except (FileNotFoundError, msgspec.MsgspecError):
            return bool(directories(self._state_dir / "journal"))
        return not 0 <= self._clock() - last.at_ns < INTERVAL_NS  # a clock that was set back must not stop it

    def _run(self) -> None:
        try:
            self._verify()
        except Exception as error:  # noqa: BLE001  raised again in the clerk's own thread
            self._error = error

    def _verify(self) -> None:
        began_ns = self._clock()
        places = verify.find([self._state_dir])
        report = verify.verify(places, (), ())
        archived = None if self._archive is None else self._look(self._archive, places.keys)
        found = summed(report, began_ns, self._clock(), archived)
        files.put(self._state_dir / RESULT, msgspec.json.encode(found, order="sorted") + b"\n", mode=0o644)
        level = logging.ERROR if found.verdict is Verdict.TAMPERED else logging.INFO
        log(
            logger, level, "journals verified", verdict=found.verdict.value, journals=found.journals,
            lines=found.lines, findings=len(found.findings) + found.findings_left_out,
        )  # fmt: skip

    def _look(self, archive: Archive, keys: Sequence[Key]) -> Look:
        fronts = Fronts(self._state_dir / FRONTS, archive, Trust(keys) if keys else None)
        found = directories(self._state_dir / "journal")
        return fronts.look(found, self._clock(), bytes_max=FRONTS_BYTES_MAX)


def summed(report: Report, began_ns: int, at_ns: int, archived: Look | None) -> Verification:
    """What is kept of a report, and of a look at what the archive has of these journals."""
    inspected = [journal.inspected for journal in report.journals]
    found = [finding for one in inspected for finding in one.findings] + list(report.findings)
    if archived is not None:
        # Fronts are looked at there, each in its turn; what is missing there too is found there.
        found = [finding for finding in found if finding.what is not What.FRONT_MISSING]
        found += archived.findings
        archived = msgspec.structs.replace(archived, findings=())
    findings = [finding for finding in found if finding.what is not What.LIVE]
    left_out = sum(one.findings_left_out for one in inspected)
    return Verification(
        archived=archived,
        at_ns=at_ns,
        began_ns=began_ns,
        calls=sum(one.calls for one in inspected),
        checkpoints=sum(one.checkpoints for one in inspected),
        findings=tuple(findings[:FINDINGS_MAX]),
        findings_left_out=left_out + max(0, len(findings) - FINDINGS_MAX),
        journals=len(inspected),
        keys=report.keys,
        lines=sum(one.lines for one in inspected),
        live=sum(any(finding.what is What.LIVE for finding in one.findings) for one in inspected),
        records=sum(one.records for one in inspected),
        verdict=worst(finding.what.verdict for finding in found),
    )
