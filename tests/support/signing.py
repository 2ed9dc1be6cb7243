"""Keys that sign in tests."""

import pathlib
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering.audit.checkpoint import Signer
from metering.audit.keys import KEY_NAME, Keys
from metering.audit.notary import Notary, SigningKey


def keys(state_dir: pathlib.Path) -> Keys:
    """With one to sign with."""
    made = Keys(state_dir)
    made.ensure(time.time_ns())
    return made


def signer(number: int = 1) -> Signer:
    """For each number always the same."""
    return Signer(KEY_NAME, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def key(number: int = 1) -> SigningKey:
    """The same, good from the beginning of time."""
    return SigningKey(signer(number), 0)


def notary(writer: str) -> Notary:
    """Of a journal that has no line yet."""
    return Notary(writer, key())
