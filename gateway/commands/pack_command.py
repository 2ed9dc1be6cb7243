"""`weighbridge audit pack`: a month for an auditor, in one signed tar (metering/audit/pack.py)."""

import hashlib
import io
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

from gateway.commands import outfile
from gateway.configuration.archives import all_journals, archive_of, objects_of
from gateway.configuration.config_load import Place
from metering.audit import audit, keys, latest_notes, pack, verify, verify_page
from metering.audit.findings import Verdict
from metering.audit.notary import SigningKey
from metering.audit.versions import Read
from metering.cost import close_manifest
from metering.cost.closes import Closes
from metering.export import export
from metering.journal import event_journal, events
from metering.journal.chain import Broken
from metering.journal.events import Happening
from metering.journal.journal import directories


class Packed(NamedTuple):
    """What was written: so many files, and what verifying has found. broken: journals that ledger.csv lacks part of."""

    files: int
    verdict: Verdict
    broken: list[Broken]


def write(
    place: Place,
    month: str,
    out: pathlib.Path,
    anchors: Read,
    key: SigningKey,
    tell: Callable[[Happening], None],
) -> Packed:
    """Write the pack of a month. key: signs it. tell: what it raises leaves nothing written.

    Raises ValueError, VerifyError, ArchiveError, OSError, naming the file.
    """
    hours = close_manifest.month_hours(month)
    archive = archive_of(place.journal)
    report = verify.verify(
        verify.find([pathlib.Path(place.state_dir)]),
        [],
        anchors.anchors,
        archive,
        anchors_amiss=anchors.findings,
    )
    here = directories(place.journals)
    closes = Closes(objects_of(pathlib.Path(place.state_dir), place.journal))
    found = list(all_journals(place.journals, place.journal))
    broken: list[Broken] = []
    ledger = io.StringIO(newline="")
    export.export_csv(export.rows_from_journal(found, hours, broken.append), ledger)
    members = {
        "verify.json": audit.as_json(report) + b"\n",
        "verify.txt": verify_page.page(report).encode(),
        "inventory.jsonl": b"".join([*pack.inventory(here), *pack.archived_inventory(archive)]),
        "ledger.csv": ledger.getvalue().encode(),
        "closes.jsonl": b"".join(map(close_manifest.encode, closes.all_revisions(hours))),
        "months.jsonl": b"".join(map(close_manifest.encode, closes.states(month))),
        pack.KEYS: (place.keys.path / keys.KEYS).read_bytes(),
    }
    for latest in latest_notes.latest(place.journals):
        if latest.note is not None:
            members[f"checkpoints/{latest.writer}.note"] = latest.note.encode()
    members |= {f"events/{topic}.jsonl": lines for topic, lines in pack.events(found, hours).items()}
    at_ns = max(time.time_ns(), key.from_ns)
    data = pack.made(members, month=month, verdict=report.verdict, signer=key.signer, at_ns=at_ns)
    told = events.exported(
        actor=event_journal.user(),
        what="pack",
        period=f"{export.moment_text(hours.start)}/{export.moment_text(hours.stop)}",
        rows=len(members),
        sha256=hashlib.sha256(data).hexdigest(),
        to=str(out.absolute()),
    )
    with outfile.whole(out) as file:
        file.write(data)
        outfile.settle(file)
        tell(told)
    return Packed(len(members), report.verdict, broken)
