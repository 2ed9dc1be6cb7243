"""The `/metrics` of a simulated server: the families that vLLM's users read, under vLLM's names. Pure.

Names, types, labels and buckets are those of vLLM 0.32.0 (its v1/metrics/loggers.py and buckets.py; the capture
in tests/data/vllm-0.32.0 holds the list). One engine, so `engine` is always "0".
"""

import bisect
from collections.abc import Iterator

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

_NS_PER_S = 1_000_000_000
_TTFT_EDGES_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_EDGES_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_REQUEST_EDGES_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts of observations in nanoseconds by bucket, and their sum."""

    def __init__(self, name: str, about: str, edges_s: tuple[float, ...]) -> None:
        self.name = name
        self.about = about
        self._edges_s = edges_s
        self._edges_ns = [round(edge * _NS_PER_S) for edge in edges_s]
        self._counts = [0] * (len(edges_s) + 1)
        self._sum_ns = 0

    def observe(self, value_ns: int) -> None:
        self._counts[bisect.bisect_left(self._edges_ns, value_ns)] += 1
        self._sum_ns += value_ns

    def lines(self, labels: str) -> Iterator[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} histogram"
        below = 0
        for edge, count in zip((*map(str, self._edges_s), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{{labels},le="{edge}"}} {float(below)}'
        yield f"{self.name}_count{{{labels}}} {float(below)}"
        yield f"{self.name}_sum{{{labels}}} {self._sum_ns / _NS_PER_S}"


class Metrics:
    """Counters and histograms of one server; the engine counts, `page` shows."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.ttft = Histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_EDGES_S
        )
        self.inter_token = Histogram(
            "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL_EDGES_S
        )
        self.queue_time = Histogram(
            "vllm:request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            _REQUEST_EDGES_S,
        )
        self.e2e = Histogram(
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            _REQUEST_EDGES_S,
        )

    def page(self, *, running: int, waiting: int, cache_used: float) -> str:
        """The exposition text. cache_used: from 0 to 1."""
        return "\n".join(self._lines(running, waiting, cache_used)) + "\n"

    def _lines(self, running: int, waiting: int, cache_used: float) -> Iterator[str]:
        gauges = (
            ("vllm:num_requests_running", "Number of requests in model execution batches.", running),
            ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting),
            ("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", cache_used),
        )
        for name, about, value in gauges:
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} gauge"
            yield f"{name}{{{self._labels}}} {float(value)}"
        counters = (
            ("vllm:prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            ("vllm:prompt_tokens_cached", "Number of cached prompt tokens.", self.cached_prompt_tokens),
            ("vllm:generation_tokens", "Number of generation tokens processed.", self.generation_tokens),
            ("vllm:prefix_cache_queries", "Number of queried tokens.", self.prompt_tokens),
            ("vllm:prefix_cache_hits", "Number of cached tokens.", self.cached_prompt_tokens),
            ("vllm:num_preemptions", "Cumulative number of preemption from the engine.", 0),
        )
        for name, about, count in counters:
            yield f"# HELP {name}_total {about}"
            yield f"# TYPE {name}_total counter"
            yield f"{name}_total{{{self._labels}}} {float(count)}"
        yield "# HELP vllm:request_success_total Count of successfully processed requests."
        yield "# TYPE vllm:request_success_total counter"
        for reason, count in self.finished.items():
            labels = f'engine="0",finished_reason="{reason}",{self._labels.partition(",")[2]}'
            yield f"vllm:request_success_total{{{labels}}} {float(count)}"
        for histogram in (self.ttft, self.inter_token, self.queue_time, self.e2e):
            yield from histogram.lines(self._labels)
