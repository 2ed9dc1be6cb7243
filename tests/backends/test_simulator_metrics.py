from backends.simulator.metrics import Histogram, Metrics


def samples(text: str) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def test_a_histogram_counts_at_and_below_its_edges() -> None:
    histogram = Histogram("h", "About.", (0.001, 1.0))
    for value_ns in (0, 1_000_000, 1_000_001, 5_000_000_000):
        histogram.observe(value_ns)
    assert samples("\n".join(histogram.lines('a="b"'))) == {
        'h_bucket{a="b",le="0.001"}': 2.0,
        'h_bucket{a="b",le="1.0"}': 3.0,
        'h_bucket{a="b",le="+Inf"}': 4.0,
        'h_count{a="b"}': 4.0,
        'h_sum{a="b"}': 5.002000001,
    }


def test_a_page() -> None:
    metrics = Metrics('a"b\\c\nd')
    metrics.prompt_tokens, metrics.cached_prompt_tokens, metrics.generation_tokens = 30, 16, 7
    metrics.finished["stop"] += 2
    page = samples(metrics.page(running=3, waiting=4, cache_used=0.25))
    labels = '{engine="0",model_name="a\\"b\\\\c\\nd"}'
    assert page["vllm:num_requests_running" + labels] == 3
    assert page["vllm:num_requests_waiting" + labels] == 4
    assert page["vllm:kv_cache_usage_perc" + labels] == 0.25
    assert page["vllm:prompt_tokens_total" + labels] == page["vllm:prefix_cache_queries_total" + labels] == 30
    assert (
        page["vllm:prompt_tokens_cached_total" + labels]
        == page["vllm:prefix_cache_hits_total" + labels]
        == 16
    )
    assert page["vllm:generation_tokens_total" + labels] == 7
    assert page['vllm:request_success_total{engine="0",finished_reason="stop",' + labels[12:]] == 2
