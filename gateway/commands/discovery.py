"""`serve --backend` without --model: ask the server which model it serves, however long it takes to start."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable

RETRY_S = 1.0
NOTICE_S = 10.0
_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 1024 * 1024


class NoModel(Exception):
    """The server answers, and does not say what it serves; the message is for the operator."""


def served_model(url: str, notice: Callable[[str], None]) -> str:
    """The first name that `GET <url>/v1/models` lists. Waits until there is an answer of 200.

    notice: called at the first failure and each 10 s with what it waits for. Raises NoModel.
    """
    # A server named on the command line is reached directly, whatever http_proxy says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    noticed: float | None = None
    while True:
        try:
            with opener.open(f"{url.rstrip('/')}/v1/models", timeout=_TIMEOUT_S) as answer:
                return _first_name(answer.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"it answers {error.code}"
            if error.code in (401, 403):
                raise NoModel("the server asks for a key; use a file with backends[].key_file") from error
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
        now = time.monotonic()
        if noticed is None or now - noticed >= NOTICE_S:
            notice(f"waiting for {url} to say which model it serves (--model NAME: do not ask): {reason}")
            noticed = now
        time.sleep(RETRY_S)


def _first_name(answer: bytes) -> str:
    try:
        name = json.loads(answer)["data"][0]["id"]
    except (ValueError, LookupError, TypeError) as error:
        raise NoModel("its answer to /v1/models names no model; give --model") from error
    if not isinstance(name, str):
        raise NoModel("its answer to /v1/models names no model; give --model")
    return name
