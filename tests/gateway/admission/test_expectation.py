"""What calls are expected to take: held against sums that are written out here."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import expectation
from gateway.admission.expectation import (
    FIRST_COMPLETION_TOKENS,
    LEARNED_MAX,
    TEMPLATE_TOKENS_MAX,
    WRITTEN_TOKENS_MIN,
    Ceiling,
    Demand,
    Expectations,
    ceiling,
)
from metering.cost.price_book import ON_DEMAND, InstancePrice
from metering.cost.pricing import RateCard, SlotRate, Unpriced, price
from metering.record import Instance
from metering.usage import UNKNOWN, Usage, UsageSource

PER_TOKEN = 1_000_000
CARD = RateCard(
    model="m1", hardware="inf2", prompt=1000 * PER_TOKEN, cached_prompt=100 * PER_TOKEN,
    completion=2000 * PER_TOKEN, date="2026-11-28", source="test",
)  # fmt: skip
DEAR = msgspec.structs.replace(CARD, prompt=5000 * PER_TOKEN, cached_prompt=9000 * PER_TOKEN)
CHAT = Demand(body_bytes=80, max_tokens=None, choices=1, generates=True)


def used(prompt: int, completion: int) -> Usage:
    return Usage(source=UsageSource.REPORTED, prompt_tokens=prompt, completion_tokens=completion)


def demand(**changed: object) -> Demand:
    return msgspec.structs.replace(CHAT, **changed)


def slot_rate() -> SlotRate:
    bought = InstancePrice(
        instance_type="inf2.xlarge", uusd_per_hour=3_600_000, date="2026-11-28", source="test", region=None,
        purchase_option=ON_DEMAND,
    )  # fmt: skip
    return SlotRate(bought, (Instance(type="inf2.xlarge", units=1, units_total=1),), 1)


# -- expected


@pytest.mark.parametrize(
    ("asked", "tokens", "hold"),
    [
        (CHAT, 20, 20_000),  # no bound, nothing learned: the prompt
        (demand(max_tokens=5), 25, 20_000 + 10_000),
        (demand(max_tokens=5, choices=3), 35, 20_000 + 30_000),
        (
            demand(max_tokens=5_000),
            5_020,
            20_000 + FIRST_COMPLETION_TOKENS * 2_000,
        ),  # the rate counts the bound
        (demand(generates=False, max_tokens=7), 20, 20_000),
    ],
)
def test_before_anything_is_learned(asked: Demand, tokens: int, hold: int) -> None:
    found = Expectations().expected("acme", "m1", asked, CARD)
    assert (found.tokens, found.hold_pusd, found.written) == (tokens, hold, None)
    assert found.tokens_min == (found.tokens - 20 if asked.generates else 0)


def test_what_calls_took_is_what_the_next_is_expected_to_take() -> None:
    known = Expectations()
    known.learn("acme", "m1", CHAT, used(10, 40), 90_000)
    assert known.expected("acme", "m1", CHAT, CARD).hold_pusd == 10_000 + 80_000
    assert known.expected("acme", "m1", demand(body_bytes=160), CARD).hold_pusd == 20_000 + 80_000
    assert known.expected("acme", "m1", demand(max_tokens=4), CARD).hold_pusd == 10_000 + 8_000
    assert known.expected("acme", "m1", demand(choices=2), CARD).hold_pusd == 10_000 + 160_000
    assert known.expected("zeta", "m1", CHAT, CARD).hold_pusd == 20_000, "another tenant's"
    assert known.expected("acme", "m2", CHAT, CARD).hold_pusd == 20_000, "another model's"


def test_choices_are_learned_one_by_one() -> None:
    known = Expectations()
    known.learn("acme", "m1", demand(choices=4), used(10, 40), 90_000)
    assert known.expected("acme", "m1", CHAT, CARD).hold_pusd == 10_000 + 20_000


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 5_000)), min_size=1, max_size=50))
def test_a_mean_stays_between_what_it_is_of(calls: list[tuple[int, int]]) -> None:
    known = Expectations()
    for prompt, completion in calls:
        known.learn("acme", "m1", CHAT, used(prompt, completion), None)
    found = known.expected("acme", "m1", CHAT, CARD)
    prompts, completions = zip(*calls, strict=True)
    assert found.hold_pusd is not None
    assert (min(prompts) - 1) * 1_000 + (min(completions) - 1) * 2_000 <= found.hold_pusd
    assert found.hold_pusd <= max(prompts) * 1_000 + (max(completions) + 1) * 2_000


def test_a_mean_follows_what_calls_take() -> None:
    known = Expectations()
    for _ in range(100):
        known.learn("acme", "m1", CHAT, used(10, 10), 30_000)
    for _ in range(100):
        known.learn("acme", "m1", CHAT, used(10, 1_000), 2_010_000)
    found = known.expected("acme", "m1", CHAT, CARD).hold_pusd
    assert found is not None
    assert 0.99 * 2_010_000 < found <= 2_012_000


def test_unknown_usage_teaches_nothing() -> None:
    known = Expectations()
    known.learn("acme", "m1", CHAT, UNKNOWN, 0)
    assert known.expected("acme", "m1", CHAT, CARD).hold_pusd == 20_000


@pytest.mark.parametrize("tariff", [slot_rate(), msgspec.structs.replace(CARD, other={"audio_s": 5})])
def test_what_tokens_do_not_price_is_held_at_what_it_cost(tariff: RateCard | SlotRate) -> None:
    known = Expectations()
    assert known.expected("acme", "m1", CHAT, tariff).hold_pusd == 0
    known.learn("acme", "m1", CHAT, used(1, 1), None)
    assert known.expected("acme", "m1", CHAT, tariff).hold_pusd == 0
    known.learn("acme", "m1", CHAT, used(1, 1), 800)
    assert known.expected("acme", "m1", CHAT, tariff).hold_pusd == 800
    known.learn("acme", "m1", CHAT, used(1, 1), 1_600)
    assert known.expected("acme", "m1", CHAT, tariff).hold_pusd == 900


def test_what_cannot_be_priced_has_no_hold() -> None:
    assert Expectations().expected("acme", "m1", CHAT, Unpriced.PRICE_UNKNOWN).hold_pusd is None


def test_only_so_many_are_remembered() -> None:
    known = Expectations()
    for number in range(LEARNED_MAX + 1):
        known.learn(f"t{number}", "m1", CHAT, used(10, 40), None)
    assert known.expected("t0", "m1", CHAT, CARD).hold_pusd == 20_000
    assert known.expected("t1", "m1", CHAT, CARD).hold_pusd == 90_000
    assert known.expected(f"t{LEARNED_MAX}", "m1", CHAT, CARD).hold_pusd == 90_000


# -- if lost


def test_a_lost_call_is_billed_what_is_expected_by_the_card_and_shows_of_what() -> None:
    known = Expectations()
    known.learn("acme", "m1", CHAT, used(10, 40), 90_000)
    found = known.if_lost("acme", "m1", demand(choices=2), CARD)
    assert (
        found.cost_pusd == 10_000 + 160_000 == known.expected("acme", "m1", demand(choices=2), CARD).hold_pusd
    )
    assert found.usage == Usage(source=UsageSource.ESTIMATED, prompt_tokens=10, completion_tokens=80)
    assert (found.price_basis, found.rate_card, found.unpriced_reason) == (CARD.basis, CARD.id, None)


FORM = Demand(body_bytes=80_000, max_tokens=None, choices=1, generates=False, is_form=True)


@pytest.mark.parametrize(
    ("asked", "usage", "cost"),
    [
        (demand(max_tokens=5), Usage(source=UsageSource.ESTIMATED, prompt_tokens=20, completion_tokens=5), 30_000),
        (demand(generates=False), Usage(source=UsageSource.ESTIMATED, prompt_tokens=20, completion_tokens=0), 20_000),
        (CHAT, Usage(source=UsageSource.ESTIMATED, prompt_tokens=20), None),  # nobody knows how long its answer is
        (FORM, UNKNOWN, None),
    ],
)  # fmt: skip
def test_before_anything_is_learned_what_nobody_knows_is_not_billed(
    asked: Demand, usage: Usage, cost: int | None
) -> None:
    found = Expectations().if_lost("acme", "m1", asked, CARD)
    assert (found.usage, found.cost_pusd) == (usage, cost)
    assert found.unpriced_reason == (None if cost is not None else Unpriced.USAGE_UNKNOWN)


def test_what_is_learned_of_audio_is_billed() -> None:
    known = Expectations()
    known.learn("acme", "m1", FORM, used(100, 30), 160_000)
    assert known.if_lost("acme", "m1", FORM, CARD).cost_pusd == 100_000 + 60_000


def test_where_slot_time_is_priced_it_is_what_such_calls_cost() -> None:
    known, rate = Expectations(), slot_rate()
    found = known.if_lost("acme", "m1", CHAT, rate)
    assert (found.cost_pusd, found.unpriced_reason) == (None, Unpriced.SLOT_TIME_UNKNOWN)
    known.learn("acme", "m1", CHAT, used(1, 1), None)
    assert known.if_lost("acme", "m1", CHAT, rate).cost_pusd is None
    known.learn("acme", "m1", CHAT, used(1, 1), 800)
    found = known.if_lost("acme", "m1", CHAT, rate)
    assert (found.cost_pusd, found.price_basis, found.rate_card) == (800, rate.basis, None)


def test_what_has_no_price_is_unpriced_and_not_free() -> None:
    found = Expectations().if_lost("acme", "m1", demand(max_tokens=5), Unpriced.PRICE_UNKNOWN)
    assert (found.cost_pusd, found.unpriced_reason) == (None, Unpriced.PRICE_UNKNOWN)
    assert found.usage.completion_tokens == 5


# -- worst


def chat(text: str = "hi", **more: object) -> bytes:
    return json.dumps({"model": "m1", "messages": [{"role": "user", "content": text}], **more}).encode()


def over(body: bytes, operation: str = "chat", length_max: int | None = 8_192) -> Ceiling:
    return ceiling(body, operation, length_max=length_max, slot_ns_max=10**9)


def test_a_prompt_has_no_more_tokens_than_its_body_has_bytes_and_its_template() -> None:
    body = chat("x" * 100)
    assert over(body).prompt_tokens == len(body) + TEMPLATE_TOKENS_MAX
    assert over(chat("x" * 9_000)).prompt_tokens == 8_192
    assert over(chat("x" * 9_000), length_max=None).prompt_tokens > 10_000


@pytest.mark.parametrize("word", ["image_url", "input_audio", "video_url", "file_id", "chat_template"])
def test_a_picture_may_be_longer_than_its_name(word: str) -> None:
    body = chat(**{word: 1})
    assert over(body).prompt_tokens == len(body) + TEMPLATE_TOKENS_MAX + 8_192
    assert over(body, length_max=None).prompt_tokens is None


def test_every_prompt_of_a_list_is_answered() -> None:
    def prompts(prompt: object) -> int:
        return over(json.dumps({"prompt": prompt}).encode(), "completions").prompts

    assert [prompts(one) for one in ("a", ["a"], ["a", "b"], [1, 2, 3], [[1], [2], [3]], [], None)] == [
        1, 1, 2, 1, 3, 1, 1,
    ]  # fmt: skip
    assert over(json.dumps({"prompt": ["a", "b"]}).encode()).prompts == 1, "a chat has no such thing"


def test_a_query_stands_before_each_document() -> None:
    body = json.dumps({"query": "q" * 100, "documents": ["a", "b", "c"]}).encode()
    found = over(body, "rerank", None).prompt_tokens
    assert found is not None
    assert found >= 3 * 100 + 3
    assert over(b'{"input":["a","b"]}', "embeddings", 4).prompt_tokens > 4, "how many there are is not known"


def worst(
    asked: Demand,
    *tariffs: object,
    length_max: int | None = 8_192,
    prompt: int | None = 100,
    prompts: int = 1,
):
    above = Ceiling(prompt_tokens=prompt, prompts=prompts, length_max=length_max, slot_ns_max=2 * 10**9)
    return Expectations().worst("acme", "m1", asked, tariffs or (CARD,), above)  # type: ignore[arg-type]


def test_the_dearest_of_all_that_may_serve_it_is_held() -> None:
    assert worst(demand(max_tokens=10)).hold_pusd == 100_000 + 20_000
    assert worst(demand(max_tokens=10), CARD, DEAR, CARD).hold_pusd == 900_000 + 20_000
    dearer = msgspec.structs.replace(CARD, prompt=9500 * PER_TOKEN)
    assert worst(demand(max_tokens=10), DEAR, dearer).hold_pusd == 950_000 + 20_000
    assert worst(demand(max_tokens=10, choices=2), prompts=3).hold_pusd == 100_000 + 120_000
    assert worst(demand(generates=False)).hold_pusd == 100_000
    assert worst(CHAT, slot_rate()).hold_pusd == 2 * 10**9
    assert worst(demand(max_tokens=10**9)).hold_pusd == 100_000 + 8_192 * 2_000
    assert worst(demand(max_tokens=10), prompt=None).hold_pusd is None
    assert worst(demand(max_tokens=10), CARD, Unpriced.PRICE_UNKNOWN).hold_pusd is None


def test_seconds_of_audio_have_no_bound() -> None:
    card = msgspec.structs.replace(CARD, other={"audio_s": 5})
    assert worst(demand(max_tokens=1, is_form=True), card).hold_pusd is None
    assert worst(demand(max_tokens=1), card).hold_pusd == 102_000


def test_the_bound_that_is_paid_for_is_written_where_the_client_names_none() -> None:
    assert worst(demand(max_tokens=10)).written is None
    found = worst(CHAT)
    assert (found.written, found.hold_pusd) == (WRITTEN_TOKENS_MIN, 100_000 + WRITTEN_TOKENS_MIN * 2_000)
    assert worst(CHAT, length_max=None).written == WRITTEN_TOKENS_MIN
    full = worst(CHAT, prompt=8_000)
    assert (full.written, full.hold_pusd) == (None, 8_000_000 + 8_192 * 2_000), "a server would refuse it"
    assert worst(demand(generates=False)).written is None
    assert worst(demand(is_form=True)).written is None
    assert worst(demand(is_form=True)).hold_pusd == 100_000 + 8_192 * 2_000
    assert worst(demand(is_form=True), length_max=None).hold_pusd is None


def test_the_bound_grows_with_what_calls_take() -> None:
    known = Expectations()
    known.learn("acme", "m1", CHAT, used(10, 1_000), None)
    above = Ceiling(prompt_tokens=100, prompts=1, length_max=8_192, slot_ns_max=1)
    assert known.worst("acme", "m1", CHAT, (CARD,), above).written == 4_000


@given(
    st.text(max_size=200), st.integers(1, 50) | st.none(), st.integers(1, 4), st.sampled_from([(CARD,), (DEAR, CARD)]),
    st.data(),
)  # fmt: skip
def test_no_call_costs_more_than_its_worst(text: str, bound: int | None, choices: int, cards, data) -> None:
    """A server that holds 2,000 tokens, and as many of them for each byte as it can: one."""
    body = chat(text)
    asked = Demand(body_bytes=len(body), max_tokens=bound, choices=choices, generates=True)
    found = Expectations().worst("acme", "m1", asked, cards, over(body, length_max=2_000))
    prompt = data.draw(st.integers(1, min(len(text.encode()) + TEMPLATE_TOKENS_MAX, 2_000)))
    room = 2_000 - prompt
    each = min(room, bound if bound is not None else found.written or room)
    usage = Usage(
        source=UsageSource.REPORTED, prompt_tokens=prompt, completion_tokens=choices * each,
        cached_prompt_tokens=data.draw(st.integers(0, prompt)),
    )  # fmt: skip
    cost = price(data.draw(st.sampled_from(cards)), usage, None).cost_pusd
    assert cost is not None
    assert found.hold_pusd is not None
    assert cost <= found.hold_pusd


def test_a_bound_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees a hold that forgets the template, which a short prompt is mostly made of."""
    monkeypatch.setattr(expectation, "TEMPLATE_TOKENS_MAX", 0)
    body = chat("hi")
    found = Expectations().worst("acme", "m1", demand(max_tokens=1), (CARD,), over(body))
    cost = price(CARD, used(len(body) + 1, 1), None).cost_pusd
    assert found.hold_pusd is not None
    assert cost is not None
    assert cost > found.hold_pusd
