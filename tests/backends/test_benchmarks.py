"""Published measurements: which are taken for a model, and what they make of a whole instance."""

import fractions
import importlib.resources

import pytest

from backends import benchmarks
from backends.benchmarks import Benchmark, plain_name
from backends.catalog import read_catalog

CATALOG = read_catalog((importlib.resources.files("metering") / "data" / "instances.csv").read_text())
TABLE = (importlib.resources.files("backends") / "data" / "neuron_benchmarks.csv").read_text()
ROWS = benchmarks.read(TABLE)


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Meta-Llama-3.1-8B",
        "Llama-3.1-8B (on-device sampling)",
    ],
)
def test_a_model_is_known_by_any_of_its_names(name: str) -> None:
    assert plain_name(name) == "llama-3.1-8b"


def test_other_names_stay_apart() -> None:
    assert plain_name("Mistral-7B-Instruct-v0.2") == "mistral-7b-v0.2"
    assert plain_name("Llama-3-8B") != plain_name("Llama-3.1-8B")
    assert plain_name("chatglm3-6b") == "chatglm3-6b"


def test_the_rows_that_lack_what_a_rate_needs_are_left_out() -> None:
    assert len(ROWS) > 100
    assert all(one.instance_type and one.out_per_s > 0 for one in ROWS)


def test_the_whole_instance_at_its_greatest_load_is_taken() -> None:
    found = benchmarks.best(ROWS, ["meta-llama/Llama-3.1-8B-Instruct"], CATALOG["inf2.48xlarge"])
    assert found is not None
    assert (found.tp, found.replicas, found.concurrency) == (8, 3, "max (<=128)")
    rates = found.per_hour(CATALOG["inf2.48xlarge"])
    assert rates is not None
    prompt, completion = rates
    assert completion == fractions.Fraction("1226.12") * 3600
    assert prompt == completion * 6  # 1500 tokens in for each 250 out
    assert "Llama-3.1-8B on inf2.48xlarge, tensor parallel 8 x 3, batch 32" in str(found)


def test_a_part_of_the_cores_is_taken_as_often_as_there_is_room() -> None:
    part = [one for one in ROWS if one.model == "Llama-3.1-8B (CPU sampling)"]
    found = benchmarks.best(part, ["llama-3.1-8b"], CATALOG["inf2.48xlarge"])
    assert found is not None
    assert found.per_hour(CATALOG["inf2.48xlarge"]) == (
        fractions.Fraction("176.99") * 3600 * 3 * 6,
        fractions.Fraction("176.99") * 3600 * 3,
    )


def test_what_does_not_fit_or_is_of_another_model_is_none() -> None:
    assert benchmarks.best(ROWS, ["qwen-9"], CATALOG["inf2.48xlarge"]) is None
    assert benchmarks.best(ROWS, ["llama-3.1-8b"], CATALOG["g6e.xlarge"]) is None
    large = Benchmark(
        model="m", instance_type="inf2.xlarge", tp=24, replicas=1, batch="", concurrency="", context="", input_tokens=1,
        output_tokens=1, out_per_s=fractions.Fraction(1), weight_dtype="", framework="", sdk="", source="",
    )  # fmt: skip
    assert large.per_hour(CATALOG["inf2.xlarge"]) is None
    assert benchmarks.best([large], ["m"], CATALOG["inf2.xlarge"]) is None
    assert str(large).endswith(
        "batch ?, concurrency ?, context ?, 1+1 tokens, precision ?, framework ?, SDK ?"
    )
