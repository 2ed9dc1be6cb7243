"""What `/metrics` of a vLLM says, as much of it as a judge of token counts needs. Pure."""

from tests.oracle.exposition import Sample, parse


def totals(text: str) -> dict[str, float]:
    """The sum of each of vLLM's sample names over its label sets."""
    sums: dict[str, float] = {}
    for (name, _), value in samples(text).items():
        sums[name] = sums.get(name, 0.0) + value
    return sums


def shape(text: str) -> list[str]:
    """Families of vLLM with their types, and sample names with their label names, sorted, each once."""
    lines = {f"{name}{{{','.join(label for label, _ in labels)}}}" for name, labels in samples(text)}
    for line in text.splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, name, kind = line.split()
            lines.add(f"{name} {kind}")
    return sorted(lines)


def samples(text: str) -> dict[Sample, float]:
    page = parse(text)
    everything = page.counters | page.others
    return {sample: value for sample, value in everything.items() if sample[0].startswith("vllm:")}
