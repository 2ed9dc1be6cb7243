"""Encrypts the content of calls to a tenant's public key, and decrypts it for whoever has the private one.

HPKE, RFC 9180, single shot, mode base: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM. Each call has a key of
its own that is forgotten as soon as its box is made: the gateway cannot read what it has kept, nor can its next owner.
"""

import base64
import binascii
import hashlib
import os
import pathlib

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from metering.capture import frame
from metering.capture.frame import Frame, Header

PREFIX = "x25519:"
PUBLIC_BYTES = 32
_ID_DIGITS = 8
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class ContentKeyError(ValueError):
    """This is no such key; the message says why."""


class NotOpened(ValueError):
    """A box does not open: it was altered, or is another key's. The message says which is known."""


class Recipient:
    """Who can read: a public key. text: `x25519:` and 32 bytes in base64; id: names it in records."""

    def __init__(self, key: X25519PublicKey) -> None:
        raw = key.public_bytes_raw()
        self.text = PREFIX + base64.b64encode(raw).decode()
        self.id = hashlib.sha256(raw).hexdigest()[:_ID_DIGITS]
        self._key = key

    @classmethod
    def parse(cls, text: str) -> "Recipient":
        """Raises ContentKeyError."""
        try:
            raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            raw = b""
        if not text.startswith(PREFIX) or len(raw) != PUBLIC_BYTES:
            raise ContentKeyError(
                f"must be {PREFIX} and 32 bytes in base64, as `weighbridge audit keys content` shows it"
            )
        key = X25519PublicKey.from_public_bytes(raw)
        try:
            _SUITE.encrypt(b"", key)
        except ValueError:  # of small order: anybody could open what is encrypted to it
            raise ContentKeyError("is no key that anybody has the private half of") from None
        return cls(key)

    def seal(self, header: Header, prompt: bytes, answer: bytes) -> bytes:
        """A whole frame of a call's content: so much of each as `header` says."""
        assert (len(prompt), len(answer)) == (header.prompt_kept_bytes, header.answer_kept_bytes)
        front = frame.front(header)
        return front + _SUITE.encrypt(prompt + answer, self._key, info=front)


class Opener:
    """A private key: opens boxes."""

    def __init__(self, key: X25519PrivateKey) -> None:
        self.recipient = Recipient(key.public_key())
        self._key = key

    @classmethod
    def new(cls) -> "Opener":
        """A new pair."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def load(cls, path: pathlib.Path) -> "Opener":
        """Read it from PEM. Raises ContentKeyError, OSError."""
        data = path.read_bytes()
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it wants a password
            raise ContentKeyError(f"{path} holds no private key in PEM without a password") from None
        if not isinstance(key, X25519PrivateKey):
            raise ContentKeyError(f"{path} holds a key of another kind than X25519")
        return cls(key)

    def write_new(self, path: pathlib.Path) -> None:
        """Write it as PEM, PKCS 8, 0600, where nothing is yet. Raises OSError, FileExistsError."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())

    def open(self, sealed: Frame) -> tuple[bytes, bytes]:
        """Prompt and answer of a frame, as far as they were kept. Raises NotOpened."""
        header = sealed.header
        if header.key != self.recipient.id:
            raise NotOpened(f"it is for the key {header.key}, and this is {self.recipient.id}")
        try:
            content = _SUITE.decrypt(sealed.box, self._key, info=sealed.front)
        except InvalidTag:
            raise NotOpened("it was altered since it was written: it does not open") from None
        return content[: header.prompt_kept_bytes], content[header.prompt_kept_bytes :]
