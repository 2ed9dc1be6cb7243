"""The extra process: what has time, beside the calls and never on a data loop.

    each ROUND_S, in order:  every duty ─▶ its tasks, one by one, each failing alone

One per state directory, started by the supervisor (processes/desk.py) and started again when it dies; no call ever
needs it. It gets the resolved configuration as a worker does. SIGTERM ends it, and so does the end of the
supervisor: its pipe closes, and on Linux the kernel tells it. Whatever it was at is done again by the next one:
all that it does is whole or not there.
"""

import argparse
import functools
import os
import pathlib
import select
import signal
import sys
from collections.abc import Mapping
from types import FrameType

from gateway.configuration import config as cfg
from gateway.configuration.archives import archive_of
from gateway.configuration.config import Config
from gateway.duties.close_duty import CloseDuty
from gateway.duties.content_duty import ContentDuty
from gateway.duties.control_duty import ControlDuty
from gateway.duties.duties import Clerk, Duty, Task
from gateway.duties.keeping import Keeping
from gateway.duties.key_duty import KeyDuty
from gateway.duties.verify_duty import VerifyDuty
from gateway.processes import logs
from metering.pages import board
from metering.pages.board import FAILING, Gauge

ROUND_S = 5.0
NICENESS = 10
"""Workers come first."""


def duties(config: Config) -> list[Duty]:
    """What the clerk sees to, in the order of a round."""
    key = KeyDuty(config)
    control = ControlDuty(config)
    closing = CloseDuty(config)
    archive = archive_of(config.journal)
    verification = VerifyDuty(pathlib.Path(config.state_dir), archive=archive)
    keeping = Keeping(config)
    content = ContentDuty(config, None if archive is None else archive.objects, keeping.believed_ns)
    return [
        *keeping.duties(),
        *content.duties(),
        Duty("key", lambda: [Task("", key.look)]),
        Duty("control", lambda: [Task("look", control.look_if_due)]),
        Duty("verify", lambda: [Task("journals", verification.verify_if_due)]),
        Duty("close", lambda: [Task("hours", closing.close_if_due)]),
    ]


def show_failures(pages: pathlib.Path, failures: Mapping[str, int]) -> None:
    """Show how many tasks of each duty fail (metering/pages/board.py). Raises OSError."""
    gauges = [Gauge(name=FAILING, labels=(duty,), value=count) for duty, count in failures.items()]
    board.show(pages, "duties", gauges)


def run(clerk: Clerk, supervisor_fd: int) -> int:
    """Go round until the supervisor's end of this pipe is closed. returns: the exit code."""
    while True:
        clerk.round()
        if select.select([supervisor_fd], [], [], ROUND_S)[0]:  # nobody ever writes to it
            return 0


def main() -> int:
    """Entry of `python -m gateway.duties.clerk`; see desk.py for who calls it."""
    parser = argparse.ArgumentParser(prog="weighbridge-clerk", description=__doc__)
    for name in ("--config-fd", "--supervisor-fd"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    # Ctrl-C may reach the whole group; the supervisor speaks for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    logs.set_up(sys.stderr, process="clerk")
    os.nice(NICENESS)
    with os.fdopen(args.config_fd, "rb") as file:
        config = cfg.from_json(file.read())
    pages = pathlib.Path(config.state_dir) / "pages"
    clerk = Clerk(duties(config), show=functools.partial(show_failures, pages))
    return run(clerk, args.supervisor_fd)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
