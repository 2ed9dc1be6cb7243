"""Files that keep an API key over restarts: that of `serve --backend` and the demo, and the first operator's."""

import os
import pathlib
import secrets

from gateway.api.new_keys import KEY_PATTERN, new_key

KEY_FILE = "api-key"
ADMIN_KEY_FILE = "admin-key"


class KeyFileError(OSError):
    """The key file is there and holds no key; the message says which."""


def kept_key(path: pathlib.Path) -> str:
    """The key in `path`; made and written there, for its owner only (0600), if the file is not there.

    Raises OSError if it can be neither read nor written, KeyFileError if it holds something else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        key = path.read_text().strip()
    except FileNotFoundError:
        key = new_key()
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(key + "\n")
                file.flush()
                os.fsync(file.fileno())
            # A link, not a rename: of two processes that start at once the second takes the first one's key.
            try:
                os.link(part, path)
            except FileExistsError:
                key = path.read_text().strip()
        finally:
            part.unlink()
    if not KEY_PATTERN.match(key):
        raise KeyFileError(f"{path} holds no API key; remove it to get a new one")
    return key
