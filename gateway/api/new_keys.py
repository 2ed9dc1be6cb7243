"""New API keys, and what all of them look like."""

import base64
import re
import secrets

KEY_PATTERN = re.compile(r"wb-[a-z2-7]{52}\Z")
_KEY_BYTES = 32


def new_key() -> str:
    """A key of 256 random bits: "wb-" and 52 base32 characters."""
    return "wb-" + base64.b32encode(secrets.token_bytes(_KEY_BYTES)).decode().rstrip("=").lower()
