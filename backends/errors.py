"""What can go wrong with one attempt at one backend. Pure.

* BackendError
  + BackendUnavailable      no work started: connect failed, 429, 503
  + BackendTimeout          sent; no first byte (or no next byte) in time
  + BackendDisconnected     sent; the connection ended before the response did
  + BackendRejected         answered with a 4xx but 429: the request itself is at fault
  + BackendFaulted          answered with a 5xx, or with something not HTTP, JSON or SSE
"""


class BackendError(Exception):
    """Base. `sent`: did work start? It bears on cost; fallback turns on the commit point.

    reason: a short fixed phrase with no address, fit for a record ("connect refused").
    """

    sent = True

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"{backend}: {reason}")
        self.backend = backend
        self.reason = reason


class BackendUnavailable(BackendError):
    """Connect failed, or a 429 or 503: nothing was generated."""

    sent = False


class BackendTimeout(BackendError):
    """A deadline of the call passed while the backend had it."""


class BackendDisconnected(BackendError):
    """The connection ended before the response did."""


class BackendRejected(BackendError):
    """A 4xx other than 429. context_length: the prompt outgrew this backend's wall."""

    context_length = False


class BackendFaulted(BackendError):
    """A 5xx, or an answer that cannot be read."""
