"""The configuration of the last start, kept in the state directory, so that the next one can tell what changed."""

import logging
import pathlib
from typing import NamedTuple

import msgspec

from gateway.configuration import config_changes
from gateway.configuration.config import Config
from gateway.processes import registrations
from metering import files
from metering.journal.events import Happening
from metering.logs import log
from metering.record import Registration

FILE = "config.last.json"

logger = logging.getLogger("weighbridge.worker")


class Changes(NamedTuple):
    """happenings: keys and prices; gone: backends that are no longer where the last configuration had them."""

    happenings: list[Happening]
    gone: list[Registration]


class ConfigLast:
    """What a state directory knows of its last configuration: <state_dir>/config.last.json, for its owner only.

    Whoever removes or alters it hides no change: `start` has the digest of each configuration.
    """

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path = state_dir / FILE

    def changes(self, config: Config) -> Changes:
        """What is to be told of this start; nothing, if nothing changed. Raises OSError."""
        try:
            before = self._path.read_bytes()
        except FileNotFoundError:
            return Changes(config_changes.changes(None, config), [])
        try:
            return Changes(config_changes.changes(before, config), registrations.gone(before, config))
        except msgspec.MsgspecError as error:
            log(
                logger,
                logging.WARNING,
                "last configuration not readable",
                file=str(self._path),
                error=str(error),
            )
            return Changes(config_changes.changes(None, config), [])

    def remember(self, config: Config) -> None:
        """Keep it for the next start, once the journal has told of it. Raises OSError."""
        files.put(self._path, config_changes.remembered(config))
