"""Who is let in: a key, its guard, and what becomes of keys that are not known. Pure.

headers ─▶ Keys ──┬─ known ─▶ its guard (barred, endpoint, network) ─▶ Principal
                  └─ not ───▶ Attempts of that address ─▶ 401, or 429
"""

from collections.abc import Callable

from gateway.api.auth import Address, Keys, Principal
from gateway.api.errors import KeyBarred, TooManyAttempts, UnknownKey
from gateway.configuration.config import Config
from gateway.directory.attempts import Attempts
from gateway.directory.sources import Origins, Sources
from gateway.faces.sign_ins import SignIns


class Entrance:
    """One worker's. clock: monotonic, in ns."""

    def __init__(self, keys: Keys, attempts: Attempts, sources: Sources, clock: Callable[[], int]) -> None:
        self.keys = keys
        self._attempts = attempts
        self._sources = sources
        self._clock = clock
        self.sign_ins = SignIns()
        """Refused at the ordinary endpoints of the API (openai_api.entered): not those of calls, whose lines say so."""

    @classmethod
    def of(cls, config: Config, keys: Keys, clock: Callable[[], int]) -> "Entrance":
        """As a configuration has it."""
        attempts = Attempts(config.auth.failures_per_minute)
        return cls(keys, attempts, Sources(config.server.trusted_proxies), clock)

    def known(self, authorization: bytes | None, api_key: bytes | None, origin: Origins) -> Principal:
        """Who sent these headers, whatever he may do: `check` is to follow. As Keys.principal.

        Raises UnknownKey, TooManyAttempts.
        """
        try:
            return self.keys.principal(authorization, api_key)
        except UnknownKey as error:
            raise self.failed(error, authorization, api_key, origin) from error

    def failed(
        self, error: UnknownKey, authorization: bytes | None, api_key: bytes | None, origin: Origins
    ) -> UnknownKey | TooManyAttempts:
        """What is to be answered to headers whose key is not known: that, or that there were too many such.

        Once a request. Neither who has no key guesses one, nor who has one that is barred.
        """
        if isinstance(error, KeyBarred) or (authorization is None and api_key is None):
            return error
        wait_ms = self._attempts.failed(self._source(origin), self._clock())
        if wait_ms is None:
            return error
        message = "too many unknown API keys came from this address; try again with one that is known"
        return TooManyAttempts(message, wait_ms=wait_ms)

    def check(self, principal: Principal, endpoint: str | None, origin: Origins) -> None:
        """Raises KeyBarred, DirectoryStale, OutOfBounds."""
        if principal.guard is not None:
            principal.guard.check(endpoint, lambda: self._source(origin))

    def _source(self, origin: Origins) -> Address | None:
        return self._sources.of(origin())
