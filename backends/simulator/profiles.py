"""How fast a simulated server is, from measured rows. Pure.

    time to first token  = ttft_one + (ttft_full − ttft_one) × (running − 1) ÷ (full − 1)
    time per later token = tpot_one + (tpot_full − tpot_one) × (running − 1) ÷ (full − 1)

`running` is how many sequences hold a seat, this one included; from `full` on the times stay. The pairs
(one, full) are two loads of one measured run in backends/data/neuron_benchmarks.csv: one user, and
its full batch. Prompt length does not enter: each run used prompts of one length, and a slope
over it would be a guess. Where nothing was measured the times are assumed, and say so.
"""

import csv
import enum
import io
import re
from collections.abc import Iterable

import msgspec

NS_PER_MS = 1_000_000

_SIZE = re.compile(r"(\d+(?:\.\d+)?)b\b")
_REMARK = re.compile(r" \(.*\)$")


class Basis(enum.StrEnum):
    """What the times rest on."""

    MEASURED = "measured"  # this model on this instance type
    NEAREST = "nearest"  # another model of about its size on this instance type
    ASSUMED = "assumed"  # nothing


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one server. full: sequences in its full batch; max_model_len: prompt and answer, in tokens.

    source: the model, the instance type and the row's own source, or "assumed".
    """

    basis: Basis
    full: int
    max_model_len: int
    source: str
    tpot_full_ns: int
    tpot_one_ns: int
    ttft_full_ns: int
    ttft_one_ns: int

    def ttft_ns(self, running: int) -> int:
        """From taking a seat to the first token, with `running` seats taken (≥ 1)."""
        return self._at(running, self.ttft_one_ns, self.ttft_full_ns)

    def tpot_ns(self, running: int) -> int:
        """From one token to the next, with `running` seats taken (≥ 1)."""
        return self._at(running, self.tpot_one_ns, self.tpot_full_ns)

    def _at(self, running: int, one_ns: int, full_ns: int) -> int:
        assert running >= 1
        if self.full == 1:
            return one_ns
        return one_ns + (full_ns - one_ns) * (min(running, self.full) - 1) // (self.full - 1)

    def scaled(self, factor: float) -> "Profile":
        """The same server with all times × `factor` (> 0); for tests that cannot wait for hardware."""
        assert factor > 0
        return msgspec.structs.replace(
            self,
            tpot_full_ns=int(self.tpot_full_ns * factor),
            tpot_one_ns=int(self.tpot_one_ns * factor),
            ttft_full_ns=int(self.ttft_full_ns * factor),
            ttft_one_ns=int(self.ttft_one_ns * factor),
        )


ASSUMED = Profile(
    basis=Basis.ASSUMED,
    full=32,
    max_model_len=8192,
    source="assumed",
    tpot_full_ns=25 * NS_PER_MS,
    tpot_one_ns=15 * NS_PER_MS,
    ttft_full_ns=800 * NS_PER_MS,
    ttft_one_ns=120 * NS_PER_MS,
)
"""Nobody measured this. No public table gives GPU figures taken as the Neuron ones were."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run: a model on an instance type, at one user and at its full batch."""

    model: str
    instance_type: str
    profile: Profile


def read_runs(benchmarks_csv: str) -> tuple[Run, ...]:
    """All runs of the table that hold both loads, in its order; `benchmarks_csv` is its text.

    Rows that name a concurrency are one run if their source (file and time of the run) is the same. Those
    that do not ran a fixed batch: there the pair is batch 1 and the larger batch of the same settings.
    """
    loads: dict[tuple[str, ...], dict[int, dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(benchmarks_csv)):
        load = _load(row)
        if load is None or not (row["instance_type"] and row["ttft_ms_p50"] and row["tpot_ms_p50"]):
            continue
        run = row["source"] if row["concurrency"] else row["weight_dtype"] + row["framework"] + row["sdk"]
        same = ("model", "instance_type", "tp", "replicas", "input_tokens", "output_tokens")
        loads.setdefault((*(row[name] for name in same), run), {}).setdefault(load, row)
    return tuple(
        _run(rows[1], rows[max(rows)], max(rows)) for rows in loads.values() if 1 in rows and len(rows) > 1
    )


def _load(row: dict[str, str]) -> int | None:
    """Sequences in flight; None: an arrival rate, which fixes no number of them."""
    concurrency = row["concurrency"]
    if concurrency.isdigit():
        return int(concurrency)
    if concurrency and not concurrency.startswith("max"):
        return None
    return int(row["batch"]) * int(row["replicas"])


def _run(one: dict[str, str], full: dict[str, str], load: int) -> Run:
    profile = Profile(
        basis=Basis.MEASURED,
        full=load,
        max_model_len=int(one["max_seq"]),
        source=f"{one['model']} on {one['instance_type']}, TP{one['tp']} × {one['replicas']}: {one['source']}",
        tpot_full_ns=_ns(full["tpot_ms_p50"]),
        tpot_one_ns=_ns(one["tpot_ms_p50"]),
        ttft_full_ns=_ns(full["ttft_ms_p50"]),
        ttft_one_ns=_ns(one["ttft_ms_p50"]),
    )
    return Run(model=one["model"], instance_type=one["instance_type"], profile=profile)


def _ns(milliseconds: str) -> int:
    return round(float(milliseconds) * NS_PER_MS)


def choose(runs: Iterable[Run], instance_type: str, model: str, slots: int | None) -> Profile:
    """The nearest measured run; ASSUMED for a type, or a model of unknown size, that has none.

    Runs on `instance_type` only (a row may give just its family: "trn2"). Among them: this model before
    others, then the nearest number of parameters, then the nearest full batch to `slots`, then the
    plain run before one with special settings; ties go to the earlier row.
    """
    family = instance_type.partition(".")[0]
    wanted, wanted_size = plain_name(model), size_b(model)
    best, best_rank = ASSUMED, None
    for run in runs:
        if run.instance_type not in (instance_type, family):
            continue
        same, size = plain_name(run.model) == wanted, size_b(run.model)
        if not same and (wanted_size is None or size is None):
            continue
        distance = 0.0 if same or not (size and wanted_size) else max(size / wanted_size, wanted_size / size)
        off = abs(run.profile.full - slots) if slots is not None else 0
        rank = (distance, off, bool(_REMARK.search(run.model)))
        if best_rank is None or rank < best_rank:
            basis = Basis.MEASURED if same else Basis.NEAREST
            best, best_rank = msgspec.structs.replace(run.profile, basis=basis), rank
    return best


def plain_name(model: str) -> str:
    """A model's name without organisation, remark, vendor prefix and tuning: "llama-3.1-8b"."""
    name = _REMARK.sub("", model.rpartition("/")[2]).lower()
    return name.removeprefix("meta-").removesuffix("-hf").removesuffix("-instruct")


def size_b(model: str) -> float | None:
    """Parameters in thousands of millions, as the name states them; None: it does not."""
    match = _SIZE.search(model.lower())
    return float(match[1]) if match else None
