"""What can go wrong with one attempt at one backend. Pure.

* BackendError
  + BackendUnavailable      no work started: connect failed; or busy: 429, 503
  + BackendTimeout          sent; no first byte (or no next byte) in time
  + BackendDisconnected     sent; the connection ended before the response did
  + BackendRejected         answered with a 4xx but 429: the request itself is at fault
  + BackendFaulted          answered with a 5xx, or with something not HTTP, JSON or SSE
"""


class BackendError(Exception):
    """Base. `sent`: did work start? It bears on cost; fallback turns on the commit point.

    reason: a short fixed phrase with no address, fit for a record ("connect refused").
    context_length: its words were that the prompt outgrew this backend's wall.
    """

    sent = True
    context_length = False

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"{backend}: {reason}")
        self.backend = backend
        self.reason = reason


class BackendUnavailable(BackendError):
    """Connect failed, or a 429 or 503: nothing was generated.

    status: 429 or 503; None: it could not be reached. retry_after_s: when it wants to be asked again, if it said so.
    """

    sent = False

    def __init__(
        self, backend: str, reason: str, *, status: int | None = None, retry_after_s: int | None = None
    ) -> None:
        assert retry_after_s is None or (status is not None and retry_after_s >= 0)
        super().__init__(backend, reason)
        self.status = status
        self.retry_after_s = retry_after_s


class BackendTimeout(BackendError):
    """A deadline of the call passed while the backend had it."""


class BackendDisconnected(BackendError):
    """The connection ended before the response did."""


class BackendRejected(BackendError):
    """A 4xx other than 429."""


class BackendFaulted(BackendError):
    """A 5xx, or an answer that cannot be read."""
