"""The key that a gateway's salts are made with (salts.py): 32 random bytes, 0600, `<state_dir>/keys/cache-salt.key`.

It is made at the first start. Gateways that have the same one make the same salts, so that a tenant's prompts find what
another gateway had its servers remember; with keys of their own they only do not.
"""

import errno
import logging
import pathlib
import secrets

from gateway.admission.salts import KEY_BYTES
from metering import files
from metering.logs import log

logger = logging.getLogger("weighbridge.worker")


def path_of(state_dir: pathlib.Path) -> pathlib.Path:
    """Where it is."""
    return state_dir / "keys" / "cache-salt.key"


def ensure(state_dir: pathlib.Path) -> None:
    """Make it if it is not there. One caller at a time. Raises OSError: it cannot be made, or is none."""
    path = path_of(state_dir)
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.put(path, secrets.token_bytes(KEY_BYTES))
    _read(path)


def load(state_dir: pathlib.Path) -> bytes:
    """Read it. One that is gone since the start is replaced by one of this process alone, and that is said."""
    try:
        return _read(path_of(state_dir))
    except OSError as error:
        log(logger, logging.ERROR, "key of cache salts not readable", error=error.strerror)
        return secrets.token_bytes(KEY_BYTES)


def _read(path: pathlib.Path) -> bytes:
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise OSError(errno.EINVAL, "this is no key of cache salts", str(path))
    return key
