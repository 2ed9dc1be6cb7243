"""Reads Prometheus' text format, as much of it as a judge of token counts needs. Pure."""

import re

SAMPLE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')


def totals(text: str) -> dict[str, float]:
    """The sum of each of vLLM's sample names over its label sets."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:") and (match := SAMPLE.match(line)):
            sums[match["name"]] = sums.get(match["name"], 0.0) + float(match["value"])
    return sums


def shape(text: str) -> list[str]:
    """Families of vLLM with their types, and sample names with their label names, sorted, each once."""
    lines = set()
    for line in text.splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, name, kind = line.split()
            lines.add(f"{name} {kind}")
        elif line.startswith("vllm:") and (match := SAMPLE.match(line)):
            names = ",".join(LABEL.findall(match["labels"] or ""))
            lines.add(f"{match['name']}{{{names}}}")
    return sorted(lines)
