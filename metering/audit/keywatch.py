"""A worker's look at its keys: a change is told in its journal and signed, without a restart.

A worker that has no key when it starts writes all the same: a call that nobody has signed for is worth more than none.
Its journal has no checkpoint until there is a key, which then signs all of it; if there is none to the end, whoever
looks after dead journals leaves the note, once he can.
"""

import logging
from collections.abc import Callable

from metering.audit.keyring import Keyring
from metering.audit.keys import Keys, KeysError
from metering.audit.notary import SigningKey
from metering.journal import events
from metering.journal.recorder import Recorder
from metering.logs import log

logger = logging.getLogger("weighbridge.recorder")


class KeyWatch:
    """Watches keys.json for one writer. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(self, keys: Keys, clock: Callable[[], int]) -> None:
        """key: None: there is none to be had now; `look` goes on asking."""
        self._keys = keys
        self._clock = clock
        self._failed: str | None = None
        self._told = False  # that it is missing
        self._stamp = keys.stamp()
        self._ring = Keyring()
        self.key: SigningKey | None = None
        try:
            self._ring = keys.load()
            self.key = keys.signing_key(self._ring)
        except KeysError as error:
            self._say(str(error))

    def look(self, recorder: Recorder) -> None:
        """Take up what has changed since the last look. A look at no change is one stat(), once there is a key.

        A new key is told by an `event` line; if the old one still counts, it signs one more checkpoint, of that line.
        """
        stamp = self._keys.stamp()
        if stamp == self._stamp and self.key is not None:
            return
        try:
            ring = self._keys.load()
            key = self._keys.signing_key(ring)
        except KeysError as error:
            self._say(str(error))
            if self.key is None and not self._told:
                recorder.note(events.key_missing().line(self._clock))
                self._told = True
            return
        self._stamp, self._failed = stamp, None
        if self.key is None:
            self._ring, self.key = ring, key
            found = events.key_found(key.signer.verifier.key_id.hex())
            recorder.change_key(key, found.line(self._clock), at_once=True)
            self._log_signed_by(key)
            return
        changes = [
            events.key_changed(actor=None, what=what, key=one) for what, one in self._ring.changes(ring)
        ]
        old = self.key.signer.verifier
        self._ring, self.key = ring, key
        if key.signer.verifier == old:
            for change in changes:
                recorder.note(change.line(self._clock))
            return
        for change in changes[:-1]:
            recorder.note(change.line(self._clock))
        until_ns = ring.find(old.key_id.hex()).until_ns
        at_once = until_ns is not None and until_ns <= self._clock()
        recorder.change_key(key, changes[-1].line(self._clock), at_once=at_once)
        self._log_signed_by(key)

    def _log_signed_by(self, key: SigningKey) -> None:
        log(logger, logging.INFO, "journal signed by another key", key=key.signer.verifier.key_id.hex())

    def _say(self, failed: str) -> None:
        """Once for each reason: the old key goes on meanwhile, if there was one."""
        if failed != self._failed:
            log(logger, logging.ERROR, "keys cannot be read", error=failed)
        self._failed = failed
