"""The closing process: one run of the close, by itself, started by the clerk (gateway/duties/close_duty.py).

In a process of its own, for it needs memory for a moment and must not hold up the clerk's other duties. It ends with
status 0, with WAITS if an hour that is over waits for somebody, or with 1: the log says why.
"""

import argparse
import logging
import os
import pathlib
import sys
import time

from gateway.configuration import config as cfg
from gateway.configuration.config import Config
from gateway.duties import close_runs
from gateway.duties.close_duty import WAITS
from gateway.duties.close_runs import Found
from gateway.processes import logs
from metering.archive.facts import FactsError
from metering.archive.objects import ArchiveError
from metering.audit.keys import Keys
from metering.cost.close_files import CloseFileError
from metering.cost.close_manifest import hour_text
from metering.cost.closing import Told
from metering.journal import event_journal, events
from metering.logs import log
from metering.pages import board
from metering.pages.board import CLOSE_BEHIND, CLOSE_TIMESTAMP, Gauge
from metering.units import NS_PER_S

MADE_BY = "closer"
"""Of its manifests and its journals."""
NICENESS = 9
"""Beyond the clerk's: everything else comes first."""

logger = logging.getLogger("weighbridge.close")


def run(config: Config, now_ns: int, *, recheck: bool = True) -> Found:
    """Close what can be closed, and show how far that is. recheck: look at closed hours again.

    Raises what close_runs.run does; OSError also where the journal can't tell of it.
    """
    where = close_runs.place_of(config)
    keys = Keys(config.state_dir, config.journal.signing_key_file)

    def tell(told: Told) -> None:
        first, last = hour_text(told.hours[0]), hour_text(told.hours[-1])
        happening = events.hours_closed(
            actor=None, reason=told.reason.value, first=first, last=last, hours=len(told.hours)
        )
        event_journal.tell(where.journals, MADE_BY, [happening], keys.ensure(time.time_ns()))

    def note(text: str) -> None:
        log(logger, logging.WARNING, "close", note=text)

    found = close_runs.run(
        where, period=None, now=False, now_ns=now_ns, made_by=MADE_BY, tell=tell, note=note, recheck=recheck
    )
    for one in found.closed:
        log(
            logger, logging.INFO, "hour closed", hour=hour_text(one.hour), revision=one.revision,
            reason=one.reason.value, rows=one.rows.count, cost_usd=one.totals.instances,
        )  # fmt: skip
    gauges = [
        Gauge(name=CLOSE_BEHIND, value=found.behind),
        Gauge(name=CLOSE_TIMESTAMP, value=now_ns // NS_PER_S),
    ]
    board.show(pathlib.Path(config.state_dir) / "pages", "close", gauges)
    return found


def main() -> int:
    """Entry of `python -m gateway.duties.closer`."""
    parser = argparse.ArgumentParser(prog="weighbridge-closer", description=__doc__)
    parser.add_argument("--config-fd", type=int, required=True)
    parser.add_argument("--open-only", action="store_true")
    args = parser.parse_args()
    logs.set_up(sys.stderr, process="closer")
    os.nice(NICENESS)
    with os.fdopen(args.config_fd, "rb") as file:
        config = cfg.from_json(file.read())
    try:
        found = run(config, time.time_ns(), recheck=not args.open_only)
    except (ArchiveError, FactsError, CloseFileError, OSError) as error:
        log(logger, logging.ERROR, "hours cannot be closed", reason=str(error))
        return 1
    return WAITS if found.waiting else 0


if __name__ == "__main__":
    sys.exit(main())
