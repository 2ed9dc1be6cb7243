"""HTML as values: text is escaped where it is put in, so that nothing anybody chose becomes markup. Pure.

    tag("td", "<b>", scope="row")  ─▶  <td scope="row">&lt;b&gt;</td>

Characters that turn the direction of text, and other invisible ones, are shown as what they are: a name can't make the
amounts beside it read backwards.
"""

import html
import unicodedata
from typing import NamedTuple

_SHOWN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Controls, formats (marks of direction among them), surrogates, private use, separators of lines."""
_VOID = frozenset({"br", "meta"})


class Markup(NamedTuple):
    """HTML that was made here."""

    text: str


Child = Markup | str


def tag(name: str, /, *children: Child, **attributes: str) -> Markup:
    """An element. attributes: `class_` is class; `_` in a name is `-`."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        assert not children
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(*children).text}</{name}>")


def join(*children: Child) -> Markup:
    """One after the other."""
    return Markup("".join(one.text if isinstance(one, Markup) else _escaped(one) for one in children))


def word(text: str) -> Markup:
    """A name that somebody chose: set apart from what stands around it, whichever way it is written."""
    return tag("bdi", text)


def _escaped(text: str) -> str:
    return html.escape("".join(map(_shown, text)))


def _shown(character: str) -> str:
    if unicodedata.category(character) in _SHOWN_CATEGORIES:
        return f"⟨U+{ord(character):04X}⟩"
    return character
