"""A worker's look at its keys: a change is told in its journal and signed, without a restart."""

import logging
from collections.abc import Callable

from metering import events
from metering.keys import Keys, KeysError
from metering.logs import log
from metering.notary import SigningKey
from metering.recorder import Recorder

logger = logging.getLogger("weighbridge.recorder")


class KeyWatch:
    """Watches keys.json for one writer. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(self, keys: Keys, clock: Callable[[], int]) -> None:
        """Raises KeysError: there is no key to sign with."""
        self._keys = keys
        self._clock = clock
        self._stamp = keys.stamp()
        self._ring = keys.load()
        self._failed: str | None = None
        self.key: SigningKey = keys.signing_key(self._ring)

    def look(self, recorder: Recorder) -> None:
        """Take up what has changed since the last look. A look at no change is one stat().

        A new key is told by an `event` line; if the old one still counts, it signs one more checkpoint, of that line.
        """
        stamp = self._keys.stamp()
        if stamp == self._stamp:
            return
        try:
            ring = self._keys.load()
            key = self._keys.signing_key(ring)
        except KeysError as error:
            self._say(str(error))
            return
        self._stamp, self._failed = stamp, None
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
        log(logger, logging.INFO, "journal signed by another key", key=key.signer.verifier.key_id.hex())

    def _say(self, failed: str) -> None:
        """Once for each reason: the old key goes on meanwhile."""
        if failed != self._failed:
            log(logger, logging.ERROR, "keys cannot be read", error=failed)
        self._failed = failed
