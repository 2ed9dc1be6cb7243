"""The keys that sign a state directory's journals, as files. All that write or read private ones.

    <state_dir>/keys/              0700
      keys.json                    all keys that ever signed, each with when it was good (metering/audit/keyring.py)
      <key id>.pem                 the private one, PKCS 8, 0600; not where journal.signing_key_file names one
      lock                         flock held by who changes anything here

A key that lies beside the journals proves nothing against whoever can write there: he can sign anew. What he can't
change is a checkpoint that was kept elsewhere, an anchor.
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterator

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from metering import files
from metering.audit.checkpoint import Signer
from metering.audit.keyring import Key, Keyring, KeyringError
from metering.audit.notary import SigningKey

Path = str | os.PathLike[str]
Tell = Callable[[Keyring, Keyring], None]
"""Called with the keys before and after a change, before it takes effect; where it raises, nothing changes."""

KEY_NAME = "weighbridge-journal"
DIRECTORY = "keys"
KEYS = "keys.json"
LOCK = "lock"


class KeysError(OSError):
    """A key can't be had: the message says which, and why."""


def untold(_before: Keyring, _after: Keyring) -> None:
    """Nobody is to be told of a change."""


class Keys:
    """The keys of a state directory.

    signing_key_file: the private key, if the operator keeps it; else it is made and kept here.
    """

    def __init__(self, state_dir: Path, signing_key_file: Path | None = None) -> None:
        self.path = pathlib.Path(state_dir) / DIRECTORY
        self._signing_key_file = None if signing_key_file is None else pathlib.Path(signing_key_file)

    def load(self) -> Keyring:
        """All keys; none, if there is no keys.json. Raises KeysError."""
        path = self.path / KEYS
        try:
            return Keyring.parse(path.read_bytes())
        except FileNotFoundError:
            return Keyring()
        except KeyringError as error:
            raise KeysError(f"{path}: {error}") from None
        except OSError as error:
            raise KeysError(f"{path}: {error.strerror}") from error

    def ensure(self, now_ns: int, tell: Tell = untold) -> SigningKey:
        """The key to sign with. The first one is made, and another if its private half is lost; one that the
        operator has put in its file's place is taken up.

        Raises KeysError, OSError.
        """
        with self._locked():
            keyring = self.load()
            current = keyring.current
            if current is not None and self._signing_key_file is None and self._path_of(current).exists():
                return self.signing_key(keyring)
            signer = self._new()
            if current is None or current.vkey != signer.verifier.vkey:
                keyring = self._store(keyring, self._with_new(keyring, signer, now_ns), tell)
            return self.signing_key(keyring)

    def signing_key(self, keyring: Keyring) -> SigningKey:
        """The present key of this ring. Raises KeysError."""
        if (current := keyring.current) is None:
            raise KeysError(f"{self.path / KEYS} has no key to sign with")
        path = self._signing_key_file or self._path_of(current)
        signer = Signer(KEY_NAME, _read_private(path))
        if signer.verifier.vkey != current.vkey:
            raise KeysError(
                f"{path} is not the key {current.id} that signs now: `audit keys rotate` takes up a new one"
            )
        return SigningKey(signer, current.from_ns)

    def rotate(self, now_ns: int, tell: Tell) -> Keyring:
        """Take up a new key: one that is made, or that the operator has put into his file.

        Raises KeysError, OSError.
        """
        with self._locked():
            keyring = self.load()
            return self._store(keyring, self._with_new(keyring, self._new(), now_ns), tell)

    def end(self, key_id: str, at_ns: int, now_ns: int, tell: Tell) -> Keyring:
        """Say that a key was stolen at `at_ns`: from then on it was not good. The present one is replaced as well.

        Raises KeysError, OSError.
        """
        with self._locked():
            keyring = self.load()
            try:
                changed = keyring.with_stolen(key_id, at_ns)
            except KeyringError as error:
                raise KeysError(str(error)) from None
            if changed.current is None:
                changed = self._with_new(changed, self._new(), now_ns)
            return self._store(keyring, changed, tell)

    def stamp(self) -> tuple[int, int] | None:
        """Changes whenever keys.json does; None: there is none."""
        try:
            found = os.stat(self.path / KEYS)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _path_of(self, key: Key) -> pathlib.Path:
        return self.path / f"{key.id}.pem"

    def _with_new(self, keyring: Keyring, signer: Signer, now_ns: int) -> Keyring:
        try:
            return keyring.with_new(signer.verifier.vkey, now_ns)
        except KeyringError as error:
            where = f"{self._signing_key_file}: " if self._signing_key_file else ""
            raise KeysError(f"{where}{error}; a new one is needed") from None

    def _new(self) -> Signer:
        """The operator's key, or one that is made and kept here; it is not in keys.json yet."""
        if self._signing_key_file is not None:
            return Signer(KEY_NAME, _read_private(self._signing_key_file))
        private = Ed25519PrivateKey.generate()
        signer = Signer(KEY_NAME, private)
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._put(f"{signer.verifier.key_id.hex()}.pem", pem, 0o600)
        return signer

    def _store(self, before: Keyring, after: Keyring, tell: Tell) -> Keyring:
        try:
            tell(before, after)
        except BaseException:
            self._discard(before, after)
            raise
        self._put(KEYS, after.encode(), 0o644)
        return after

    def _discard(self, before: Keyring, after: Keyring) -> None:
        """A private key that was made for a change that does not happen must not lie about."""
        if self._signing_key_file is None:
            for key in after.keys:
                if key.vkey not in {known.vkey for known in before.keys}:
                    self._path_of(key).unlink(missing_ok=True)

    def _put(self, name: str, data: bytes, mode: int) -> None:
        path = self.path / name
        files.put(path, data, mode=mode)
        files.give_to_owner(self.path, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.give_to_owner(self.path.parent, self.path)
        fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            files.give_to_owner(self.path, self.path / LOCK)
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _read_private(path: pathlib.Path) -> Ed25519PrivateKey:
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it wants a password
        raise KeysError(f"{path} holds no private key in PEM without a password") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeysError(f"{path} holds a key of another kind than Ed25519")
    return private
