"""`Retry-After` (RFC 9110 §10.2.3): when a busy backend wants to be asked again. Pure."""

import email.utils
import math
from collections.abc import Iterable
from datetime import UTC

RETRY_AFTER_S_MAX = 3600
"""Longer waits are cut to this: a backend's word must not shut clients out for days."""

_DIGITS_MAX = 9


def read(headers: Iterable[tuple[bytes, bytes]], now_s: float) -> int | None:
    """The wait in whole seconds, from 0 to RETRY_AFTER_S_MAX; None: not said, or not readable.

    headers: names in lower case; the first `retry-after` counts. now_s: wall clock (a date is an absolute time).
    """
    for name, value in headers:
        if name == b"retry-after":
            return _seconds(value.strip(), now_s)
    return None


def _seconds(value: bytes, now_s: float) -> int | None:
    if value.isdigit():
        digits = value.lstrip(b"0")
        return (
            min(int(digits or b"0"), RETRY_AFTER_S_MAX) if len(digits) <= _DIGITS_MAX else RETRY_AFTER_S_MAX
        )
    try:
        when = email.utils.parsedate_to_datetime(value.decode("ascii"))
        if when.tzinfo is None:  # asctime's form, and "-0000": RFC 9110 has all of them in UTC
            when = when.replace(tzinfo=UTC)
        wait_s = math.ceil(when.timestamp() - now_s)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return min(max(wait_s, 0), RETRY_AFTER_S_MAX)
