"""Which pages of other origins may read our answers, as browsers ask (WHATWG Fetch, «CORS protocol»). Pure.

A browser asks first (a preflight: OPTIONS, no key) and then sends the call itself; it shows an answer to the page
only if the answer names the page's origin. Cookies are no part of this: `Access-Control-Allow-Credentials` is never
sent, a key goes into `Authorization`.
"""

import re
from collections.abc import Mapping

from gateway.api import errors
from gateway.calls.events import Headers
from gateway.configuration.config import Cors

_NAMES = re.compile(rb"[A-Za-z0-9_-]+(?:[ \t]*,[ \t]*[A-Za-z0-9_-]+)*")
_EXPOSED = b", ".join(
    (
        *(b"x-request-id", b"x-weighbridge-call-id", b"x-weighbridge-served-by", b"x-weighbridge-fallback"),
        *(b"x-weighbridge-spill", b"x-weighbridge-ignored", b"retry-after", b"request-id"),
    )
)
_METHODS = b"GET, HEAD, POST"

Answer = tuple[int, Headers, bytes]
"""Status, headers, body."""


class CorsPolicy:
    """What is said to pages of which origins."""

    def __init__(self, config: Cors) -> None:
        self._any = config.origins == ("*",)
        self._origins = frozenset(origin.encode() for origin in config.origins)
        self._max_age_s = config.max_age_s

    def preflight(self, method: str, headers: Mapping[bytes, bytes]) -> Answer | None:
        """The answer if this request asks whether another may be sent; else None. headers: names in lower case."""
        if method != "OPTIONS" or b"origin" not in headers or b"access-control-request-method" not in headers:
            return None
        allowed = self._allowed(headers[b"origin"])
        vary = (b"vary", b"origin, access-control-request-method, access-control-request-headers")
        if allowed is None:
            body = errors.error_body(errors.OriginNotAllowed("pages of this origin may not call here"))
            length = (b"content-length", b"%d" % len(body))
            return 403, [(b"content-type", b"application/json"), length, vary], body
        answer = [
            (b"access-control-allow-origin", allowed),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % self._max_age_s),
            vary,
        ]
        asked = headers.get(b"access-control-request-headers", b"").strip()
        if _NAMES.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked))
        return 204, answer, b""

    def headers(self, origin: bytes | None) -> Headers:
        """What is added to the answer of any other request. origin: of the page that sent it; None: not said."""
        allowed = self._allowed(origin) if origin is not None else None
        added = [] if self._any else [(b"vary", b"origin")]  # a cache must not show one page another's answer
        if allowed is not None:
            added += [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED)]
        return added

    def _allowed(self, origin: bytes) -> bytes | None:
        """The value that lets a page of `origin` read; None: it may not."""
        if self._any:
            return b"*"
        return origin if origin in self._origins else None
