"""A statement as a reader of HTML sees it; nothing here is ours but the page that it reads."""

import html.parser
from typing import NamedTuple

VOID = {"meta", "br"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "div", "span", "p", "h1",
    "h2", "dl", "dt", "dd", "bdi", "table", "caption", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
"""All that a page may consist of: no script, no image, no link, no form."""
ATTRIBUTES = {"class", "id", "lang", "charset", "content", "http-equiv", "name", "role", "scope"}


class Table(NamedTuple):
    """As text: caption, heads of the columns, rows."""

    caption: str
    head: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """Of all rows; «Sum» too."""
        return [row[self.head.index(name)] for row in self.rows]


class Page(html.parser.HTMLParser):
    """A whole page. Raises AssertionError: an element is not closed, or one that there must not be is there."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self.texts: dict[str, str] = {}
        self.language: str | None = None
        self.style = ""
        self._open: list[str] = []
        self._ids: list[str | None] = []
        text = data.decode()
        assert text.startswith("<!DOCTYPE html>\n")
        self.feed(text)
        self.close()
        assert self._open == []

    def text(self, name: str) -> str:
        """Of all elements of this name, or with this id (#id), one after the other."""
        return self.texts.get(name, "")

    def table(self, caption: str) -> Table:
        """The one whose caption begins so."""
        (found,) = [one for one in self.tables if one.caption.startswith(caption)]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        of = dict(attrs)
        if tag == "html":
            self.language = of.get("lang")
        if tag == "table":
            self.tables.append(Table("", [], []))
        if tag == "tr" and "tbody" in self._open:
            self.tables[-1].rows.append([])
        if tag == "th":
            assert of.get("scope") in ("col", "row")
        if tag in ("th", "td"):
            into = self.tables[-1].rows[-1] if "tbody" in self._open else self.tables[-1].head
            into.append("")
        if tag not in VOID:
            self._open.append(tag)
            self._ids.append(of.get("id"))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        self._ids.pop()

    def handle_data(self, data: str) -> None:
        for name in {*self._open, *(f"#{one}" for one in self._ids if one)}:
            self.texts[name] = self.texts.get(name, "") + data
        if "caption" in self._open:
            self.tables[-1] = self.tables[-1]._replace(caption=self.tables[-1].caption + data)
        elif "th" in self._open or "td" in self._open:
            into = self.tables[-1].rows[-1] if "tbody" in self._open else self.tables[-1].head
            into[-1] += data
