"""What an outside judge can find wrong with a gateway's books."""

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """Each is a broken promise."""

    CHAIN = "chain"  # a journal's lines do not hold together, or a dead writer's directory is not closed
    UNADMITTED = "unadmitted"  # a backend saw a request that has not exactly one `admitted`
    NO_RECORD = "no_record"  # an `admitted` without a `call`
    DOUBLED = "doubled"  # more than one `admitted` or `call` of one call
    NOT_COMPLETED = "not_completed"  # a client read an answer's end, but no record says `completed`
    TOKENS = "tokens"  # client, backend and record count differently
    LEDGER = "ledger"  # the store is not the sum of the records
    COUNTER_FELL = "counter_fell"
    COUNTER_WRONG = "counter_wrong"  # a counter is not the count of the journal's lines
    ABOVE = "above"  # at some moment the store or a counter had more than the journals
    EXPORT = "export"  # a row of an export is not the sum of the records
    REPLY = "reply"  # the gateway did not come back, or did not end, as it should


class Fault(NamedTuple):
    """One thing that is wrong. where: the call, line, balance or series."""

    kind: Kind
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.what}"
