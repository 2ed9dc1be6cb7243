"""Does somebody use a backend past the gateway? Its own token counters against our records. Pure.

    backend's counters    ──────────────●─────────────────●──▶    tokens that it made, by its own count
    records of the calls  ──────────●─────────────────●──▶        tokens that we know it made
                                    └─┬─┘             └─┬─┘
                              in flight now      … and later: always above 0, near 0 in a quiet moment

What is above the records is in flight or unmetered. Calls end and are recorded; what nobody metered
stays. So the least of the last looks is the nearest to what is unmetered that can be known, and it is
never less. Tokens of a stream that was cut are counted by us one for each delta: a server that had
made more stays above by these, which is why an alert looks at growth and not at the figure itself.
"""

import msgspec

LOOKS = 10
"""How many looks are remembered; of these the least counts."""


class Bypass(msgspec.Struct):
    """One backend. It is looked at from the first look on: what it had counted before is nobody's fault.

    gone: unmetered in lives of the backend that are over. base: its count less ours, in this life, that is
    not unmetered; None until its first look. counter: its count at the last look. looks: the last ones'
    tokens above the records.
    """

    gone: int = 0
    base: int | None = None
    counter: int = 0
    looks: list[int] = []

    @property
    def unmetered(self) -> int | None:
        """Tokens that the backend made and no record has; None before the first look."""
        return self.gone + min(self.looks) if self.looks else None

    def forgive(self) -> None:
        """What the backend has made since the last looks may have been metered where we can't see it."""
        self.gone = self.unmetered or 0
        self.base, self.looks = None, []

    def look(self, counter: int, metered: int) -> None:
        """Take in the backend's tokens since its start, and those of all records of calls that it served.

        metered: read before `counter` was, so that a call that ends in between is not missing there. What other
        gateways have metered of it (metering/ledger/metered_elsewhere.py) is a part of that.
        """
        if self.base is not None and counter < self.counter:  # it was started again
            self.gone += min(self.looks)
            # What it has made by now in its new life was asked by somebody since; which of it is in
            # `metered` is not known, so this life begins now.
            self.base = None
        self.counter = counter
        above = counter - metered
        if self.base is None or above < self.base:
            # Less than nothing cannot be in flight: there was something in flight when we began to look.
            self.base = above
            self.looks = []
        self.looks = [*self.looks, above - self.base][-LOOKS:]
