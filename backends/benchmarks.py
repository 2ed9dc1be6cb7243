"""Published measurements of models on Neuron instances (backends/data/neuron_benchmarks.csv). Pure."""

import csv
import fractions
import io
import re
from collections.abc import Iterable

import msgspec

from backends.catalog import InstanceType

_SECONDS_PER_HOUR = 3_600
_ORGANISATION = re.compile(r"^.*/")
_REMARK = re.compile(r"\s*\(.*\)")
_FORM = re.compile(r"-(?:instruct|chat|hf|it)(?=-|$)")
_LISTED = ("model", "instance_type", "tp", "replicas", "input_tokens", "output_tokens", "out_tok_s")


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One row: `replicas` servers on tp cores each, fed with requests of so many tokens in and out.

    out_per_s: completion tokens a second of all replicas together. The other fields are words for people, "" unknown.
    """

    model: str
    instance_type: str
    tp: int
    replicas: int
    batch: str
    concurrency: str
    context: str
    input_tokens: int
    output_tokens: int
    out_per_s: fractions.Fraction
    weight_dtype: str
    framework: str
    sdk: str
    source: str

    def per_hour(self, instance: InstanceType) -> tuple[fractions.Fraction, fractions.Fraction] | None:
        """Prompt and completion tokens that the whole instance makes in an hour; None: it is too small for this.

        What was measured on a part of its cores is taken as often as there is room for.
        """
        used = self.tp * self.replicas
        if used > instance.units_total:
            return None
        completion = self.out_per_s * _SECONDS_PER_HOUR * fractions.Fraction(instance.units_total, used)
        return completion * self.input_tokens / self.output_tokens, completion

    def __str__(self) -> str:
        """For the source of a rate card."""
        words = [
            f"{self.model} on {self.instance_type}",
            f"tensor parallel {self.tp}" + (f" x {self.replicas}" if self.replicas > 1 else ""),
            f"batch {self.batch or '?'}",
            f"concurrency {self.concurrency or '?'}",
            f"context {self.context or '?'}",
            f"{self.input_tokens}+{self.output_tokens} tokens",
            self.weight_dtype or "precision ?",
            f"{self.framework or 'framework ?'}" + (f" {self.sdk}" if self.sdk else ", SDK ?"),
        ]
        return ", ".join(words)


def read(benchmarks_csv: str) -> list[Benchmark]:
    """The rows that say all that a rate needs."""
    return [
        Benchmark(
            model=row["model"],
            instance_type=row["instance_type"],
            tp=int(row["tp"]),
            replicas=int(row["replicas"]),
            batch=row["batch"],
            concurrency=row["concurrency"],
            context=row["max_seq"],
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            out_per_s=fractions.Fraction(row["out_tok_s"]),
            weight_dtype=row["weight_dtype"],
            framework=row["framework"],
            sdk=row["sdk"],
            source=row["source"],
        )
        for row in csv.DictReader(io.StringIO(benchmarks_csv))
        if all(row[name] for name in _LISTED)
    ]


def best(benchmarks: Iterable[Benchmark], names: Iterable[str], instance: InstanceType) -> Benchmark | None:
    """The measurement of a model, by any of its names, on this type with the most completion tokens an hour.

    One of the whole instance goes before those of a part: servers side by side are each slower than one alone.
    """
    wanted = {plain_name(name) for name in names}
    fitting = [
        ((one.tp * one.replicas == instance.units_total, rates[1]), one)
        for one in benchmarks
        if one.instance_type == instance.name
        and plain_name(one.model) in wanted
        and (rates := one.per_hour(instance)) is not None
    ]
    return max(fitting, key=lambda fit: fit[0])[1] if fitting else None


def plain_name(name: str) -> str:
    """A model's name without its organisation, its form and remarks: "meta-llama/Llama-3.1-8B-Instruct" is
    "llama-3.1-8b", and so is "Llama-3.1-8B (on-device sampling)"."""
    plain = _REMARK.sub("", _ORGANISATION.sub("", name.strip().lower())).removeprefix("meta-")
    return _FORM.sub("", plain)
