"""The clerk's look at the key that signs: one that is gone, or can't be read, is told before anybody needs it.

A worker keeps what it has read and signs on; one that is started meanwhile writes without checkpoints until there is
a key again (metering/audit/keywatch.py). A private half that we made and that is lost is replaced, as a start does.
"""

import pathlib
import time
from collections.abc import Callable

from gateway.configuration.config import Config
from metering.audit.keys import Keys, KeysError
from metering.journal import event_journal

COMMAND = "clerk"


class KeyDuty:
    """Of one state directory. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(self, config: Config, clock: Callable[[], int] = time.time_ns) -> None:
        self._keys = Keys(config.state_dir, config.journal.signing_key_file)
        self._is_operators = config.journal.signing_key_file is not None
        self._journals = pathlib.Path(config.state_dir) / "journal"
        self._clock = clock

    def look(self) -> None:
        """Raises KeysError: the message says what is missing, and where; OSError."""
        keyring = self._keys.load()
        if not keyring.keys:  # the next start would make a new one, and none of those before would be known
            raise KeysError(
                f"{self._keys.path} has no keys.json any more: put it back, or no journal can be verified"
            )
        if self._is_operators:
            self._keys.signing_key(keyring)
        else:
            told = event_journal.telling(self._journals, COMMAND, None, self._keys)
            self._keys.ensure(self._clock(), told)
