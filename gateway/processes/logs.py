"""How events are written: one JSON object a line on stderr; on a terminal, text for a person.

    log(logger, logging.WARNING, "attempt failed", backend=b.name, error=error.reason)
    {"at":"2026-11-28T01:22:03.123Z","level":"warning","event":"attempt failed","backend":"inf2-a",…}

`log` itself is in metering/logs.py, for all layers. What looks like a secret is masked in every line: an exception's
message, of a library or of ours, may hold one.
"""

import datetime
import json
import logging
import re
from typing import Any, TextIO

import msgspec

from metering.logs import FACTS
from metering.logs import log as log

_QUOTE = r"""\\?["']?"""  # a quote may stand escaped within JSON
_NAMES = "password|passwd|secret|api[_-]?key|authorization"
_SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]+"), r"\1 ***"),
    (re.compile(rf"""(?i)((?:{_NAMES}){_QUOTE}\s*[=:]\s*{_QUOTE})[^\s"'\\,;&)]+"""), r"\1***"),
    (re.compile(r"\bwb-[A-Za-z0-9]{8,}"), "wb-***"),
    (re.compile(r"""(://)[^/\s"'@]*@"""), r"\1***@"),
)
"""Authorization headers, `password=…` and its kin, our own keys, a URL's user and password."""


def masked(text: str) -> str:
    """The text without what looks like a secret in it."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def set_up(stream: TextIO, *, level: int = logging.INFO, **facts: Any) -> None:
    """Send all logs of this process to `stream`, libraries' too. facts: stand in each line (worker=0)."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines(facts) if stream.isatty() else JsonLines(facts))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # It warns of each malformed body, which is its sender's to know, and quotes from it.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class _Lines(logging.Formatter):
    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        self._facts = facts

    def facts_of(self, record: logging.LogRecord) -> dict[str, Any]:
        facts = self._facts | getattr(record, FACTS, {})
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return facts


class JsonLines(_Lines):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The event as a line, without its newline."""
        line = {
            "at": _moment(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        return masked(msgspec.json.encode(line | self.facts_of(record), enc_hook=str).decode())


class TextLines(_Lines):
    """The same for a person: time, level, event, facts; a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The event as text."""
        facts = self.facts_of(record)
        traceback = facts.pop("traceback", None)
        words = [_moment(record.created)[11:-1], record.levelname.lower(), record.getMessage()]
        words += [f"{name}={_word(value)}" for name, value in facts.items()]
        return masked(" ".join(words) + (f"\n{traceback}" if traceback else ""))


def _word(value: Any) -> str:
    """The value as one word: in quotes if it would not read as one, a line break among it."""
    text = str(value)
    plain = text.isprintable() and not set(text) & set(' "=')
    return text if plain and text else json.dumps(text, ensure_ascii=False)


def _moment(created: float) -> str:
    at = datetime.datetime.fromtimestamp(created, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
