import importlib.resources

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator.profiles import ASSUMED, NS_PER_MS, Basis, Run, choose, plain_name, read_runs, size_b

TABLE = importlib.resources.files("backends").joinpath("data/neuron_benchmarks.csv").read_text()
RUNS = read_runs(TABLE)
HEADER = TABLE.splitlines()[0]


def test_a_run_has_the_tables_figures() -> None:
    profile = choose(RUNS, "inf2.48xlarge", "Llama-3.1-8B", None)
    assert profile.basis is Basis.MEASURED
    assert profile.full == 96  # 3 replicas of a batch of 32
    assert profile.max_model_len == 4096
    assert (profile.ttft_one_ns, profile.ttft_full_ns) == (475_050_000, 4_198_370_000)
    assert (profile.tpot_one_ns, profile.tpot_full_ns) == (26_590_000, 49_530_000)
    assert "optimum-neuron@213224e" in profile.source


@pytest.mark.parametrize(
    ("instance_type", "model", "slots", "source"),
    [
        ("inf2.48xlarge", "meta-llama/Llama-3.1-8B-Instruct", None, "Llama-3.1-8B on inf2.48xlarge, TP8 × 3"),
        ("inf2.48xlarge", "llama-3.1-8b", 32, "Llama-3.1-8B (on-device sampling)"),  # one replica is nearer
        ("trn1.32xlarge", "Meta-Llama-3.1-8B", None, "Llama-3.1-8B on trn1.32xlarge, TP8 × 4"),
        (
            "trn2.48xlarge",
            "Llama-3.1-8B",
            None,
            "Llama-3.1-8B on trn2, TP4 × 1",
        ),  # the table gives its family
        ("inf2.48xlarge", "Qwen2.5-14B", None, "Llama-2-13b on inf2.48xlarge"),  # the nearest size
        ("g6e.xlarge", "Llama-3.1-8B", None, "assumed"),  # nobody measured it
        ("inf2.xlarge", "Llama-3.1-8B", None, "assumed"),  # nor this size
        ("inf2.48xlarge", "smollm2-135m", None, "assumed"),  # no size that we could read
    ],
)
def test_the_nearest_run(instance_type: str, model: str, slots: int | None, source: str) -> None:
    assert choose(RUNS, instance_type, model, slots).source.startswith(source)


def test_another_models_times_are_not_called_measured() -> None:
    assert choose(RUNS, "inf2.48xlarge", "Qwen2.5-14B", None).basis is Basis.NEAREST


def test_assumed_times_say_so() -> None:
    assert ASSUMED.basis is Basis.ASSUMED
    assert ASSUMED.source == "assumed"


def test_rows_without_a_pair_are_no_run() -> None:
    row = "M-7B,t,1,1,8,{load},1500,250,4096,1,{ttft},,5,,,f,s,src"
    alone = [row.format(load=1, ttft=10)]
    rate = [row.format(load=1, ttft=10), row.format(load="rate 5 req/sec", ttft=20)]
    unmeasured = [row.format(load=1, ttft=10), row.format(load="max", ttft="")]
    pair = [row.format(load=1, ttft=10), row.format(load="max (<=128)", ttft=20)]
    assert [len(read_runs("\n".join([HEADER, *rows]))) for rows in (alone, rate, unmeasured, pair)] == [
        0,
        0,
        0,
        1,
    ]


def test_a_model_of_unknown_size_is_near_to_none() -> None:
    runs = [Run(model="mystery", instance_type="t", profile=RUNS[0].profile)]
    assert choose(runs, "t", "Llama-3.1-8B", None) is ASSUMED
    assert choose(runs, "t", "Mystery", None) == RUNS[0].profile


def test_times_between_the_two_loads() -> None:
    profile = choose(RUNS, "inf2.48xlarge", "Llama-3.1-8B", 32)
    assert profile.tpot_ns(1) == profile.tpot_one_ns
    assert profile.tpot_ns(32) == profile.tpot_full_ns == profile.tpot_ns(1_000)
    assert profile.ttft_ns(1) == profile.ttft_one_ns
    assert profile.ttft_ns(32) == profile.ttft_full_ns
    assert 40 * NS_PER_MS < profile.tpot_ns(17) < 43 * NS_PER_MS


@given(st.integers(1, 200))
def test_more_company_is_never_faster(running: int) -> None:
    for profile in (ASSUMED, choose(RUNS, "trn1.32xlarge", "Llama-3.1-8B", None)):
        assert profile.ttft_ns(running) <= profile.ttft_ns(running + 1)
        assert profile.tpot_ns(running) <= profile.tpot_ns(running + 1)


def test_scaled() -> None:
    fast = ASSUMED.scaled(0.1)
    assert fast.ttft_one_ns == ASSUMED.ttft_one_ns // 10
    assert fast.tpot_full_ns == ASSUMED.tpot_full_ns // 10
    assert (fast.full, fast.source) == (ASSUMED.full, ASSUMED.source)


def test_a_batch_of_one_has_one_time() -> None:
    assert msgspec.structs.replace(ASSUMED, full=1).tpot_ns(5) == ASSUMED.tpot_one_ns


def test_every_run_is_sane() -> None:
    assert len(RUNS) > 40
    for run in RUNS:
        assert run.profile.full > 1
        assert 0 < run.profile.ttft_one_ns <= run.profile.ttft_full_ns
        assert run.profile.tpot_one_ns > 0


@pytest.mark.parametrize(
    ("name", "plain", "size"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", 8.0),
        ("Llama-3.1-8B (CPU sampling)", "llama-3.1-8b", 8.0),
        ("CodeLlama-13b-hf", "codellama-13b", 13.0),
        ("Qwen2.5-0.5B", "qwen2.5-0.5b", 0.5),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b", 30.0),
        ("mystery", "mystery", None),
    ],
)
def test_names(name: str, plain: str, size: float | None) -> None:
    assert plain_name(name) == plain
    assert size_b(name) == size
