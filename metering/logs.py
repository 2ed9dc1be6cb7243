"""One event as a log record: a fixed phrase, so that it can be counted; what varies is a fact.

    log(logger, logging.WARNING, "ledger stream stopped", tenant="acme", reason="RANGE")

How it is written is the handler's (gateway/processes/logs.py). Never content, keys or addresses of backends.
"""

import logging
from typing import Any

FACTS = "weighbridge_facts"
"""The attribute of a log record that holds its facts."""


def log(logger: logging.Logger, level: int, event: str, **facts: Any) -> None:
    """Log one event. facts: JSON values; anything else stands as its str()."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={FACTS: facts}, stacklevel=2)
