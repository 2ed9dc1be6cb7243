"""What a call will take of limits, before it is known: tokens of a rate, money of a budget. Pure.

    tokens      prompt + max_tokens × choices, if the client names a bound, as OpenAI counts it; else prompt + learned
    expected    the price of prompt + learned × choices, no more than the client's bound
    worst       the price of the longest prompt that the body can hold + the bound × choices; without a bound of the
                client's the gateway writes one into the request, the one that is paid for here

learned: what calls of the tenant and model took of late; a moving mean, its newest call an eighth of it. The prompt is
learned as tokens a byte of the body. Before anything has been learned a prompt has a token for each 4 bytes, and an
answer what the client allows, up to FIRST_COMPLETION_TOKENS; where it names no bound nothing, since a guess would keep
a tenant with a small budget out for ever: what is held too little is what `expected` may overshoot by.

What a call is billed whose end nobody saw is `expected` too, but that what is not known is not billed: an answer of
no bound before anything is learned, a prompt of audio. `worst` is never billed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from backends.settling import BYTES_PER_TOKEN
from metering.cost import pricing
from metering.cost.pricing import Priced, RateCard, SlotRate, Tariff
from metering.record import Expected
from metering.usage import UNKNOWN, Usage, UsageSource

FIRST_COMPLETION_TOKENS = 256

WRITTEN_TOKENS_MIN = 1024
"""The bound that is written where a client names none: at least this, and at least four times what is learned."""
_WRITTEN_TIMES = 4

TEMPLATE_TOKENS_MAX = 1024
"""What a chat template adds to the texts of a request, beside what its own JSON takes: a system prompt of the
model's, its words on tools. A token of byte-level tokenizers is at least a byte."""

_UNBOUND = (b"image", b"audio", b"video", b"file", b"chat_template", b"previous_response_id")
"""Names in a body whose prompt may be longer than the body is; by the letter, so a text that has them counts too."""

_PAIRED = frozenset({"rerank", "score"})
"""Operations whose prompts are pairs: one text may stand in all of them."""

_COUNTED = frozenset({"chat", "completions", "messages", "responses", "rerank", "score"})
"""Operations of whose requests it is known how many prompts they hold."""

LEARNED_MAX = 20_000
"""Pairs of tenant and model that are remembered; beyond, the one that was learned first is forgotten."""

_PARTS = 8
_SCALE = 256  # means are kept in these parts of a token, so that small ones move


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What is known of a request. max_tokens: the client's bound of one choice; choices: answers that it wants.

    generates: its answer has tokens of its own; else only its prompt counts. is_form: of audio, which may be counted in
    seconds.
    """

    body_bytes: int
    max_tokens: int | None
    choices: int
    generates: bool
    is_form: bool = False


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a call from above.

    prompt_tokens: None: nothing does. prompts: of which each is answered. length_max: tokens of a prompt and its answer
    that the longest of the backends holds; None: not known. slot_ns_max: the longest that it may hold a slot.
    """

    prompt_tokens: int | None
    prompts: int
    length_max: int | None
    slot_ns_max: int


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """tokens: of a rate; tokens_min: those that the client itself names. hold_pusd: of budgets; None: unknown.

    written: the bound to write; None: none.
    """

    tokens: int
    tokens_min: int
    hold_pusd: int | None
    written: int | None = None


class _Learned:
    """Moving means of one tenant's calls of one model. completion: of a choice; cost: of a call, where it is known."""

    __slots__ = ("body_bytes", "completion", "cost_pusd", "prompt")

    def __init__(self, body_bytes: int, prompt: int, completion: int, cost_pusd: int | None) -> None:
        self.body_bytes = body_bytes * _SCALE
        self.prompt = prompt * _SCALE
        self.completion = completion * _SCALE
        self.cost_pusd = cost_pusd

    def add(self, body_bytes: int, prompt: int, completion: int, cost_pusd: int | None) -> None:
        self.body_bytes += (body_bytes * _SCALE - self.body_bytes) // _PARTS
        self.prompt += (prompt * _SCALE - self.prompt) // _PARTS
        self.completion += (completion * _SCALE - self.completion) // _PARTS
        if cost_pusd is not None:
            before = cost_pusd if self.cost_pusd is None else self.cost_pusd
            self.cost_pusd = before + (cost_pusd - before) // _PARTS


class Expectations:
    """What calls of each tenant and model took of late, as one worker has seen it."""

    def __init__(self) -> None:
        self._learned: dict[tuple[str, str], _Learned] = {}

    def learn(self, tenant: str, model: str, demand: Demand, usage: Usage, cost_pusd: int | None) -> None:
        """A call has ended well."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if prompt is None or completion is None:
            return
        each = completion // demand.choices
        learned = self._learned.get((tenant, model))
        if learned is not None:
            learned.add(demand.body_bytes, prompt, each, cost_pusd)
            return
        if len(self._learned) >= LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
        self._learned[tenant, model] = _Learned(demand.body_bytes, prompt, each, cost_pusd)

    def expected(self, tenant: str, model: str, demand: Demand, tariff: Tariff) -> Estimate:
        """tariff: of the backend that will most likely serve it."""
        learned = self._learned.get((tenant, model))
        prompt, completion = _prompt(learned, demand), _completion(learned, demand)
        if isinstance(tariff, RateCard) and not tariff.other:
            hold_pusd = pricing.card_cost(_usage(prompt, completion), tariff)
        elif isinstance(tariff, RateCard | SlotRate):
            hold_pusd = learned.cost_pusd or 0 if learned is not None else 0
        else:
            hold_pusd = None
        return _estimate(prompt, completion, demand, hold_pusd)

    def if_lost(self, tenant: str, model: str, demand: Demand, tariff: Tariff) -> Expected:
        """What is billed if nobody sees its end. tariff: of the backend that will most likely serve it."""
        learned = self._learned.get((tenant, model))
        usage = _usage_if_lost(learned, demand)
        priced = pricing.price(tariff, usage, None)
        if isinstance(tariff, SlotRate) and learned is not None and learned.cost_pusd is not None:
            priced = Priced(cost_pusd=learned.cost_pusd, price_basis=tariff.basis)
        return Expected(
            cost_pusd=priced.cost_pusd,
            price_basis=priced.price_basis,
            rate_card=priced.rate_card,
            unpriced_reason=priced.unpriced_reason,
            usage=usage,
        )

    def worst(
        self, tenant: str, model: str, demand: Demand, tariffs: Sequence[Tariff], ceiling: Ceiling
    ) -> Estimate:
        """tariffs: of all backends that may serve it."""
        learned = self._learned.get((tenant, model))
        prompt, completion = _prompt(learned, demand), _completion(learned, demand)
        written: int | None = None
        each: int | None = 0
        if demand.generates and ceiling.prompt_tokens is not None:
            written, each = _bound(demand, ceiling, completion // demand.choices)
        answer = None if each is None else each * demand.choices * ceiling.prompts
        return _estimate(prompt, completion, demand, _dearest(tariffs, ceiling, demand, answer), written)


def ceiling(body: bytes, operation: str, *, length_max: int | None, slot_ns_max: int) -> Ceiling:
    """What no request with this body can pass. operation: its name. A token is at least a byte of the text."""
    prompts = _prompts(body) if operation == "completions" else 1
    repeats = body.count(b",") + 1 if operation in _PAIRED else 1
    read = (len(body) + TEMPLATE_TOKENS_MAX) * repeats
    held = None if length_max is None else length_max * prompts * repeats
    tokens: int | None = read
    if any(name in body for name in _UNBOUND):
        tokens = None if held is None else read + held
    elif held is not None and operation in _COUNTED:
        tokens = min(read, held)
    return Ceiling(prompt_tokens=tokens, prompts=prompts, length_max=length_max, slot_ns_max=slot_ns_max)


def _prompt(learned: _Learned | None, demand: Demand) -> int:
    if learned is None or not learned.body_bytes:
        return demand.body_bytes // BYTES_PER_TOKEN
    return demand.body_bytes * learned.prompt // learned.body_bytes


def _usage_if_lost(learned: _Learned | None, demand: Demand) -> Usage:
    """As far as anybody knows: a form's bytes say nothing of its tokens, and no bound nothing of an answer's."""
    if learned is None and demand.is_form:
        return UNKNOWN
    prompt, completion = _prompt(learned, demand), _completion(learned, demand)
    if learned is None and demand.generates and demand.max_tokens is None:
        return Usage(source=UsageSource.ESTIMATED, prompt_tokens=prompt)
    return _usage(prompt, completion)


def _completion(learned: _Learned | None, demand: Demand) -> int:
    """Of all choices."""
    if not demand.generates and not demand.is_form:
        return 0
    bound = demand.max_tokens
    if learned is None:
        each = 0 if bound is None else min(bound, FIRST_COMPLETION_TOKENS)
    else:
        each = -(-learned.completion // _SCALE)
        each = each if bound is None else min(bound, each)
    return each * demand.choices


def _estimate(
    prompt: int, completion: int, demand: Demand, hold_pusd: int | None, written: int | None = None
) -> Estimate:
    named = 0
    if demand.generates and demand.max_tokens is not None:
        named = completion = demand.max_tokens * demand.choices
    return Estimate(prompt + completion, named, hold_pusd, written)


def _usage(prompt: int, completion: int) -> Usage:
    return Usage(source=UsageSource.ESTIMATED, prompt_tokens=prompt, completion_tokens=completion)


def _dearest(
    tariffs: Sequence[Tariff], ceiling: Ceiling, demand: Demand, answer_tokens: int | None
) -> int | None:
    """The most that any of these may charge; None: one can't be priced."""
    if ceiling.prompt_tokens is None or answer_tokens is None:
        return None
    usage = _usage(ceiling.prompt_tokens, answer_tokens)
    cached = msgspec.structs.replace(usage, cached_prompt_tokens=ceiling.prompt_tokens)
    dearest: int | None = None
    for tariff in tariffs:
        read = usage
        if isinstance(tariff, RateCard):
            if tariff.other and demand.is_form:
                return None  # the seconds of audio are not known
            if tariff.cached_prompt > tariff.prompt:
                read = cached
        cost = pricing.price(tariff, read, ceiling.slot_ns_max).cost_pusd
        if cost is None:
            return None
        dearest = cost if dearest is None else max(dearest, cost)
    return dearest


def _bound(demand: Demand, ceiling: Ceiling, learned_each: int) -> tuple[int | None, int | None]:
    """The bound to write, if any, and the most tokens of one choice; None: nobody knows.

    A server refuses a bound that does not fit beside the prompt, so where there might be no room none is written:
    what the server can hold is the bound. So it is of a form, which none is written into.
    """
    assert ceiling.prompt_tokens is not None
    length_max = ceiling.length_max
    if demand.max_tokens is not None:
        return None, demand.max_tokens if length_max is None else min(demand.max_tokens, length_max)
    if demand.is_form:
        return None, length_max
    written = max(WRITTEN_TOKENS_MIN, _WRITTEN_TIMES * learned_each)
    if length_max is None or ceiling.prompt_tokens + written <= length_max:
        return written, written
    return None, length_max


class _Prompted(msgspec.Struct):
    prompt: Any = None


_PROMPTED = msgspec.json.Decoder(_Prompted)


def _prompts(body: bytes) -> int:
    """How many prompts a request of a text holds: a list of texts, or of lists of tokens, is answered one by one."""
    prompt = _PROMPTED.decode(body).prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
