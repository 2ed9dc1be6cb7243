"""The headers that tell a client where it stands with its limits: OpenAI's names and formats. Pure.

    x-ratelimit-limit-requests: 60          how many a minute
    x-ratelimit-remaining-requests: 59      how many could be asked for at this moment
    x-ratelimit-reset-requests: 1s          until nothing of the limit is in use: 17ms, 1.5s, 6m0s, 1h0m0s

and the same of tokens. Of several limits of a kind they tell of the tightest.
"""

from metering.limits.asks import Rate

NAMES = tuple(
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
"""Names of all of them."""

_MS_PER_S = 1000
_MS_PER_MINUTE = 60 * _MS_PER_S
_MS_PER_HOUR = 60 * _MS_PER_MINUTE


def lines(requests: Rate | None, tokens: Rate | None) -> bytes:
    """As they go on the wire. None: there is no such limit, and no such header."""
    told = b""
    if requests is not None:
        told = _lines(_REQUESTS, requests)
    if tokens is not None:
        told += _lines(_TOKENS, tokens)
    return told


_REQUESTS, _TOKENS = (
    b"x-ratelimit-limit-%b: %%d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%b\r\n"
    % (kind, kind, kind)
    for kind in (b"requests", b"tokens")
)


def _lines(form: bytes, rate: Rate) -> bytes:
    limit, remaining, reset_ms = rate
    reset = b"%dms" % reset_ms if 0 < reset_ms < _MS_PER_S else duration(reset_ms).encode()
    return form % (limit, remaining if remaining > 0 else 0, reset)


def duration(ms: int) -> str:
    """A span in Go's words, which OpenAI's headers have: nothing is rounded, and no unit above hours."""
    assert ms >= 0
    if ms < _MS_PER_S:
        return f"{ms}ms" if ms else "0s"
    hours, rest = divmod(ms, _MS_PER_HOUR)
    minutes, rest = divmod(rest, _MS_PER_MINUTE)
    seconds, thousandths = divmod(rest, _MS_PER_S)
    fraction = f".{thousandths:03}".rstrip("0") if thousandths else ""
    if hours:
        return f"{hours}h{minutes}m{seconds}{fraction}s"
    return f"{minutes}m{seconds}{fraction}s" if minutes else f"{seconds}{fraction}s"
