"""Ids of responses that a server keeps: each says whose it is and where it lies. Pure.

    resp_ 0123456789abcdef fedcba9876543210
          of the call      of these, and of tenant, model and backend

vLLM calls a response as `request_id` in its request says; the gateway puts such an id there, another for each backend
that it tries. So any worker of any gateway can tell later which backend holds a response, and that it is this
tenant's: it looks for the pair of model and backend with which the second half comes out. Nothing is remembered,
nothing is shared and nobody is asked, and a restart or a lost store changes nothing.

There is no secret in it, and none is needed. Clients do not name responses (wire.py), so what lies under an id was put
there by the gateway for one tenant; to another that id does not come out, but by chance, once in 2**64 for each pair.
"""

import hashlib
import re
from collections.abc import Iterable

_ID = re.compile("resp_([0-9a-f]{16})([0-9a-f]{16})")
_HALF = 16


def mint(call_id: str, *, tenant: str, model: str, backend: str) -> str:
    """The id for the response of a call that is made by this backend; model: its id here.

    All four stand in the call's record, so whoever reads that can tell the id.
    """
    nonce = _digest(call_id)
    return f"resp_{nonce}{_digest(nonce, tenant, model, backend)}"


def holder(response_id: str, *, tenant: str, places: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The place, as model and backend, where this tenant's response lies; None: it has no such response there."""
    match = _ID.fullmatch(response_id)
    if match is None:
        return None
    nonce, tag = match.groups()
    return next((place for place in places if _digest(nonce, tenant, *place) == tag), None)


def _digest(*words: str) -> str:
    """Of words without NUL, which is what parts them."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:_HALF]
