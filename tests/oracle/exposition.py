"""Prometheus' text format, and a watch over it: no counter may fall."""

import dataclasses
import re

from tests.oracle.faults import Fault, Kind

Sample = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels sorted by name."""

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPED = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_HISTOGRAM = ("_bucket", "_sum", "_count")


@dataclasses.dataclass(frozen=True)
class Page:
    """One scrape. counters: samples that may only rise, those of histograms among them."""

    counters: dict[Sample, float]
    others: dict[Sample, float]


def parse(text: str) -> Page:
    """Raises ValueError if this is not the text format."""
    rising: set[str] = set()
    page = Page({}, {})
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if kind == "counter":
                rising.add(name)
            elif kind == "histogram":
                rising.update(name + suffix for suffix in _HISTOGRAM)
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"no sample: {line!r}")
            sample = match["name"], tuple(sorted(_labels(match["labels"] or "")))
            (page.counters if match["name"] in rising else page.others)[sample] = float(match["value"])
    return page


def _labels(text: str) -> list[tuple[str, str]]:
    found = [(name, re.sub(r"\\.", lambda m: _ESCAPED[m[0]], value)) for name, value in _LABEL.findall(text)]
    if _LABEL.sub("", text):
        raise ValueError(f"no labels: {text!r}")
    return found


def show(sample: Sample) -> str:
    """As in the text format."""
    name, labels = sample
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}"


class Watch:
    """Scrapes one after another. A counter that was seen and is not there any more has fallen too."""

    def __init__(self) -> None:
        self.looks = 0
        self.faults: list[Fault] = []
        self._seen: dict[Sample, float] = {}

    def look(self, text: str) -> Page:
        """Take in the next scrape. Raises ValueError."""
        page = parse(text)
        self.looks += 1
        for sample, before in self._seen.items():
            now = page.counters.get(sample)
            if now is None or now < before:
                what = f"{before:g}, then {'nothing' if now is None else f'{now:g}'} in scrape {self.looks}"
                self.faults.append(Fault(Kind.COUNTER_FELL, show(sample), what))
        self._seen = page.counters
        return page
