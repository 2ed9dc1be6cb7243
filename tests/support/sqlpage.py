"""The statements of deploy/reference/sql.md, as they stand there."""

import pathlib
import re
from typing import NamedTuple

PAGE = pathlib.Path(__file__).parents[2] / "deploy" / "reference" / "sql.md"
ARCHIVE = "amzn-s3-demo-bucket/weighbridge"
EXPORT = "amzn-s3-demo-bucket/exports/2026-11"
CALL = ("2026-11-28", "wdh6k5o6ff6krzzbp-1")
"""The day and the id of the call that the page asks for."""

_BLOCK = re.compile(r"```sql ?(\w*)\n(.*?)\n```", re.DOTALL)
_QUESTION = re.compile(r"^\*\*([^*]+?)[:.,]?\*\*[^\n]*\n\n```sql\n(.*?)\n```", re.MULTILINE | re.DOTALL)


class Lake(NamedTuple):
    """Where the page's places are on this disk, and the call that it asks for."""

    archive: pathlib.Path
    export: pathlib.Path
    call_day: str
    call_id: str

    def here(self, statement: str) -> str:
        """A statement with these in their places."""
        text = re.sub(r"s3a?://" + re.escape(ARCHIVE), str(self.archive), statement)
        text = re.sub(r"s3a?://" + re.escape(EXPORT), str(self.export), text)
        return text.replace(f"'{CALL[0]}'", f"'{self.call_day}'").replace(CALL[1], self.call_id)


def statements(engine: str) -> list[str]:
    """What sets an engine up (`athena`, `spark`, `duckdb`), in order."""
    return [body for word, body in _BLOCK.findall(PAGE.read_text()) if word == engine]


def views() -> list[str]:
    """The views that all engines have in common."""
    return [body for word, body in _BLOCK.findall(PAGE.read_text()) if not word and body.startswith("CREATE")]


def questions() -> dict[str, str]:
    """Title → query."""
    return dict(_QUESTION.findall(PAGE.read_text()))
