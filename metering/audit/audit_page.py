"""A call's record as a page for a person: who, what, where, when, how much and why."""

import datetime
import re
from collections.abc import Iterator

import msgspec

from metering.audit.audit import Found
from metering.cost.pricing import Unpriced, explain
from metering.record import (
    Admitted,
    AttemptRecord,
    CallRecord,
    Capture,
    Expected,
    Host,
    Instance,
    Outcome,
    PriceBasis,
)
from metering.units import (
    MICRO_USD_PER_USD,
    NS_PER_MS,
    NS_PER_S,
    PICO_USD_PER_MICRO_USD,
    PICO_USD_PER_USD,
    usd_text,
)
from metering.usage import Usage

_UNKNOWN = "unknown"
_NEURON = re.compile(r"(inf|trn)\d")
"""Begins the families of Inferentia and Trainium, and of nothing else (AWS, «Instance type naming conventions»)."""
_LABEL_WIDTH = 10

_UNEXPECTED = frozenset({Unpriced.USAGE_UNKNOWN, Unpriced.SLOT_TIME_UNKNOWN})
"""Why a lost call has no price although its model has one."""


def page(found: Found) -> str:
    """The page, its lines ending in newlines."""
    lines = _open(found.line) if isinstance(found.line, Admitted) else _ended(found.line, found.host)
    rows = [*lines, *_position(found)]
    return "".join(f"{label:<{_LABEL_WIDTH}}{text}\n" for label, text in rows)


def _open(line: Admitted) -> Iterator[tuple[str, str]]:
    yield "call", f"{line.call_id}  open: admitted, not ended yet"
    yield from _ask(line)
    yield "times", f"received {_moment(line.received_ns)}"
    if isinstance(line.expected, Expected):
        cost = line.expected.cost_pusd
        yield "if lost", "unpriced" if cost is None else f"${usd_text(cost)}, what it is expected to cost"


def _ended(record: CallRecord, host: Host | None) -> Iterator[tuple[str, str]]:
    status = "" if record.status is None else f", HTTP {record.status}"
    code = f", {record.error_code}" if record.error_code not in (None, record.outcome) else ""
    simulated = "  (simulated)" if record.simulated else ""
    yield "call", f"{record.call_id}  {record.outcome}{status}{code}{simulated}"
    yield from _ask(record)
    yield "served by" if record.outcome is Outcome.COMPLETED else "sent to", _served_by(record, host)
    yield from _hardware(record, host)
    yield "times", _times(record)
    yield "tokens", _tokens(record.usage)
    yield from _cost(record)
    for number, attempt in enumerate(record.attempts, start=1):
        yield f"attempt {number}", _attempt(attempt)
    if record.plan is not None and record.plan.left_out:
        yield "left out", ", ".join(f"{one.backend} ({one.reason})" for one in record.plan.left_out)
    if record.digests is not None:
        key = f"(key {record.digests.get('key', _UNKNOWN)})"
        yield "digests", f"prompt {record.digests.get('prompt', _UNKNOWN)}  {key}"
        yield "", f"answer {record.digests.get('answer', _UNKNOWN)}"
    if isinstance(record.capture, Capture):
        yield "content", _content(record.capture)


def _content(capture: Capture) -> str:
    if capture.dropped is not None:
        return f"not kept: {capture.dropped}"
    kept = f"prompt {capture.prompt_bytes} bytes, answer {capture.answer_bytes} bytes"
    return f"{kept}, for the key {capture.key}  (audit content --call)"


def _ask(line: CallRecord | Admitted) -> Iterator[tuple[str, str]]:
    tags = "".join(f"  {name}={value}" for name, value in sorted(line.tags.items()))
    yield "who", f"tenant {line.tenant}  project {line.project or 'none'}  key {line.key_id}{tags}"
    asked_as = f" (asked for as {line.model_requested})" if line.model_requested != line.model else ""
    stream = "streamed" if line.stream else "not streamed"
    params = line.params
    limits = "" if params.max_tokens is None else f"  max_tokens {params.max_tokens}"
    limits += "" if params.n is None else f"  n {params.n}"
    yield "what", f"{line.operation}  model {line.model}{asked_as}  {stream}{limits}  {line.body_bytes} bytes"
    trace = f"  trace {line.trace_id}" if line.trace_id else ""
    yield "request", f"{line.request_id}{trace}"


def _served_by(record: CallRecord, host: Host | None) -> str:
    if record.backend is None:
        return "not known: its process was killed" if record.outcome is Outcome.LOST else "no backend"
    words = [record.backend]
    if host is not None and host.framework is not None:
        words.append(f"{host.framework} {host.framework_version or _UNKNOWN}")
    if sdk := _neuron_sdk(record):
        words.append(sdk)
    if record.spill_reason:
        words.append(f"spill: {record.spill_reason}")
    if record.fallback_reason:
        words.append(f"fallback: {record.fallback_reason}")
    return "  ".join(words)


def _neuron_sdk(record: CallRecord) -> str | None:
    """What is to be said of the Neuron SDK; None: nothing, as nobody has said what hardware it is."""
    if record.neuron_version is not None:
        return f"Neuron SDK {record.neuron_version}"
    if record.instance_family is None:
        return None
    return f"Neuron SDK {_UNKNOWN}" if _NEURON.match(record.instance_family) else "no Neuron SDK"


def _hardware(record: CallRecord, host: Host | None) -> Iterator[tuple[str, str]]:
    family = record.instance_family or _UNKNOWN
    chip = f"  chip {host.accelerator}" if host is not None and host.accelerator else ""
    instances = "".join(f"  {_instance(instance)}" for instance in record.instances)
    yield "hardware", f"family {family}{chip}{instances}  (according to: {record.identity_source})"
    if host is not None:
        facts = {
            "account": host.account, "region": host.region, "zone": host.az, "precision": host.precision,
            "tensor parallel": host.tensor_parallel, "vendor": host.vendor, "owner": host.owner,
            "logging": host.logging_policy, "stored at": host.storage_location,
        }  # fmt: skip
        known = "  ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        if known:
            yield "", known


def _instance(instance: Instance) -> str:
    share = "" if instance.units is None else f" ({instance.units} of {instance.units_total} units)"
    return f"{instance.type or _UNKNOWN}{share}" + (f" {instance.id}" if instance.id else "")


def _times(record: CallRecord) -> str:
    words = [
        f"received {_moment(record.received_ns)}",
        f"took {_ms(record.finished_ns - record.received_ns)}",
    ]
    for name, ns in (
        ("queued", record.queue_wait_ns),
        ("first token", record.ttft_ns),
        ("per token", record.tpot_ns),
        ("in a slot", record.slot_ns),
    ):
        if ns is not None:
            words.append(f"{name} {_ms(ns)}")
    return "  ".join(words)


def _tokens(usage: Usage) -> str:
    cached = "" if usage.cached_prompt_tokens is None else f" (cached {usage.cached_prompt_tokens})"
    reasoning = "" if usage.reasoning_tokens is None else f" (reasoning {usage.reasoning_tokens})"
    prompt, completion = _count(usage.prompt_tokens), _count(usage.completion_tokens)
    other = "".join(f"  {kind} {count}" for kind, count in sorted((usage.other or {}).items()))
    return f"prompt {prompt}{cached}  completion {completion}{reasoning}{other}  source {usage.source}"


def _count(tokens: int | None) -> str:
    return _UNKNOWN if tokens is None else str(tokens)


def _cost(record: CallRecord) -> Iterator[tuple[str, str]]:
    if record.cost_pusd is None:
        reason = record.unpriced_reason or _UNKNOWN
        instance_type = record.instances[0].type if record.instances else None
        yield "cost", f"unpriced: {reason}"
        if record.outcome is Outcome.LOST and reason in _UNEXPECTED:
            yield "", "its worker had seen no such call end, so it was not known what one takes"
            return
        yield (
            "",
            explain(reason, model=record.model, backend=record.backend or "…", instance_type=instance_type),
        )
        return
    how = (
        "expected at its admission" if record.outcome is Outcome.LOST and record.price_basis else "estimated"
    )
    yield "cost", f"${usd_text(record.cost_pusd)} ({how})"
    basis = record.price_basis
    if basis is None:
        lost = record.outcome is Outcome.LOST
        yield "", "a lost call is not charged" if lost else "nothing was served, so nothing is charged"
        return
    yield "", _by_card(record, basis) if basis.kind == "card" else _by_slot_time(record, basis)
    yield "", f"price of {basis.date or _UNKNOWN}, source: {basis.source or _UNKNOWN}"


def _by_card(record: CallRecord, basis: PriceBasis) -> str:
    prices = (
        ("prompt", basis.prompt_pusd_per_mtok),
        ("cached prompt", basis.cached_prompt_pusd_per_mtok),
        ("completion", basis.completion_pusd_per_mtok),
    )
    shown = ", ".join(
        f"{name} ${_short(price, PICO_USD_PER_USD)}" for name, price in prices if price is not None
    )
    more = ""
    if basis.other_pusd_per_munit is not msgspec.UNSET:
        for kind, price in basis.other_pusd_per_munit.items():
            more += f", ${_short(price, PICO_USD_PER_USD)} per 1M {kind}"
    if basis.per_request_pusd is not msgspec.UNSET:
        more += f", ${_short(basis.per_request_pusd, PICO_USD_PER_USD)} per call"
    return f"rate card {record.rate_card}: {shown} per 1M tokens{more}"


def _by_slot_time(record: CallRecord, basis: PriceBasis) -> str:
    assert basis.instance_price_uusd_per_hour is not None
    per_hour = _short(basis.instance_price_uusd_per_hour, MICRO_USD_PER_USD)
    if record.outcome is Outcome.LOST:
        return f"what such calls cost of late, derived from slot time at ${per_hour}/h"
    shares = " + ".join(f"{instance.units}/{instance.units_total}" for instance in record.instances)
    slot = _UNKNOWN if record.slot_ns is None else _ms(record.slot_ns)
    return f"derived from slot time: ${per_hour}/h × {shares} × {slot} ÷ {record.slots} slots"


def _short(amount: int, parts_per_usd: int) -> str:
    """An amount as a decimal string in USD, exact, with no zeros at its end."""
    pico_usd = amount * (1 if parts_per_usd == PICO_USD_PER_USD else PICO_USD_PER_MICRO_USD)
    return usd_text(pico_usd).rstrip("0").rstrip(".")


def _attempt(attempt: AttemptRecord) -> str:
    status = "" if attempt.status is None else f", HTTP {attempt.status}"
    error = f": {attempt.error}" if attempt.error not in (None, f"status {attempt.status}") else ""
    again = ", on a fresh connection" if attempt.reconnected else ""
    took = _ms(attempt.ended_ns - attempt.started_ns)
    return f"{attempt.backend}  {attempt.outcome}{status}{error}  {took}{again}"


def _position(found: Found) -> Iterator[tuple[str, str]]:
    yield "journal", f"writer {found.writer}  seq {found.line.seq}  file {found.file}"
    yield "", f"leaf {found.leaf}"
    yield "", f"prev {found.line.prev}"


def _moment(ns: int) -> str:
    at = datetime.datetime.fromtimestamp(ns // NS_PER_S, tz=datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ns % NS_PER_S // NS_PER_MS:03d}Z"


def _ms(ns: int) -> str:
    return f"{ns // NS_PER_MS}.{ns % NS_PER_MS // (NS_PER_MS // 10)} ms"
