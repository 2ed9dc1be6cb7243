"""What a call costs, against the same sums done with fractions; and which price is chosen."""

import fractions
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost.price_book import InstancePrice, PriceBook
from metering.cost.pricing import (
    Priced,
    PriceList,
    RateCard,
    Schedule,
    SlotRate,
    Unpriced,
    explain,
    price,
)
from metering.periods import parse_instant
from metering.record import Host, Instance
from metering.units import NS_PER_HOUR, NS_PER_S, PICO_USD_PER_USD, usd_to
from metering.usage import UNKNOWN, Usage, UsageSource

NOW_NS = parse_instant("2026-11-28")
PUSD = PICO_USD_PER_USD

counts = st.integers(0, 10**7)
prices = st.integers(0, 10**15)


def card(hardware: str = "inf2", *, prompt: int = 1, cached: int = 1, completion: int = 1) -> RateCard:
    return RateCard(
        model="llama",
        hardware=hardware,
        prompt=prompt,
        cached_prompt=cached,
        completion=completion,
        date="2026-11-01",
        source="measured",
    )


def usage(prompt: int | None, completion: int | None, cached: int | None = None) -> Usage:
    return Usage(
        source=UsageSource.REPORTED,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_prompt_tokens=cached,
    )


def host(
    instance_type: str | None = "inf2.48xlarge",
    *,
    units: int | None = 24,
    slots: int | None = 8,
    region: str | None = None,
) -> Host:
    family = instance_type.partition(".")[0] if instance_type else None
    units_total = None if units is None else 24
    share = Instance(type=instance_type, units=units, units_total=units_total)
    return Host(
        backend="b1",
        identity_source="config",
        instance_family=family,
        instances=(share,) if instance_type else (),
        model="llama",
        region=region,
        served_model="llama",
        slots=slots,
    )


def hourly(
    uusd: int = 12_981_270, instance_type: str = "inf2.48xlarge", region: str | None = None
) -> InstancePrice:
    return InstancePrice(
        instance_type=instance_type, uusd_per_hour=uusd, date="2026-07-20", source="list", region=region
    )


def half_up(exact: fractions.Fraction) -> int:
    return math.floor(exact + fractions.Fraction(1, 2))


@given(counts, counts, counts, prices, prices, prices)
def test_a_card_prices_cached_tokens_as_a_part_of_the_prompt(
    fresh: int, cached: int, completion: int, per_prompt: int, per_cached: int, per_completion: int
) -> None:
    tariff = card(prompt=per_prompt, cached=per_cached, completion=per_completion)
    priced = price(tariff, usage(fresh + cached, completion, cached), None)
    million = 10**6
    exact = (
        fractions.Fraction(fresh * per_prompt, million)
        + fractions.Fraction(cached * per_cached, million)
        + fractions.Fraction(completion * per_completion, million)
    )
    assert priced.cost_pusd == half_up(exact)


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [
        (usage(1000, 5, 800), 290_000),  # 200 × 1000 + 800 × 100 + 5 × 2000
        (usage(1000, 5, 1000), 110_000),
        (usage(1000, 5, 0), 1_010_000),
        (usage(1000, 5, None), 1_010_000),  # unknown is billed in full
        (usage(0, 0), 0),
    ],
)
def test_prices_in_nano_usd_per_token(tokens: Usage, cost: int) -> None:
    per_nano_usd = PUSD // 10**9
    # 1000, 100 and 2000 nano-USD per token: 1, 0.1 and 2 USD per 1M
    tariff = card(prompt=PUSD, cached=PUSD // 10, completion=2 * PUSD)
    assert price(tariff, tokens, None).cost_pusd == cost * per_nano_usd


def test_the_sum_is_rounded_once() -> None:
    # Each of the three parts is 0.4 picodollars: rounded each for itself they would be nothing.
    tariff = card(prompt=400_000, cached=400_000, completion=400_000)
    assert price(tariff, usage(2, 1, 1), None).cost_pusd == 1


def test_a_priced_call_says_by_what() -> None:
    priced = price(card(prompt=3, cached=2, completion=5), usage(1, 1), None)
    assert priced.rate_card == "llama/inf2@2026-11-01"
    assert priced.price_basis is not None
    assert priced.price_basis.kind == "card"
    assert priced.price_basis.prompt_pusd_per_mtok == 3
    assert priced.price_basis.cached_prompt_pusd_per_mtok == 2
    assert priced.price_basis.completion_pusd_per_mtok == 5
    assert priced.price_basis.instance_price_uusd_per_hour is None
    assert (priced.price_basis.date, priced.price_basis.source) == ("2026-11-01", "measured")
    assert priced.unpriced_reason is None


@pytest.mark.parametrize("tokens", [UNKNOWN, usage(None, 5), usage(5, None)])
def test_a_missing_count_is_no_zero(tokens: Usage) -> None:
    assert price(card(), tokens, 5) == Priced(unpriced_reason=Unpriced.USAGE_UNKNOWN)


AUDIO = Usage(source=UsageSource.REPORTED, other={"audio_s": 90})


def full(*, prompt: int = 0, completion: int = 0, per_request: int = 0, **other: int) -> RateCard:
    plain = card(prompt=prompt, cached=prompt, completion=completion)
    return msgspec.structs.replace(plain, per_request=per_request, other=other)


@given(
    counts, counts, st.dictionaries(st.sampled_from(["audio_s", "images", "pages"]), counts), prices, prices
)
def test_other_kinds_and_each_call_are_added_before_the_rounding(
    prompt: int, completion: int, other: dict[str, int], per_audio: int, per_request: int
) -> None:
    tariff = full(prompt=3, completion=5, per_request=per_request, audio_s=per_audio, images=7)
    used = msgspec.structs.replace(usage(prompt, completion), other=other)
    exact = fractions.Fraction(
        prompt * 3 + completion * 5 + other.get("audio_s", 0) * per_audio + other.get("images", 0) * 7, 10**6
    )
    if prompt or completion or other.get("audio_s") or other.get("images"):
        exact += per_request
    assert price(tariff, used, None).cost_pusd == half_up(exact)


@pytest.mark.parametrize(
    ("tariff", "used", "cost"),
    [
        (full(audio_s=2_000_000), AUDIO, 180),
        (full(audio_s=2_000_000, per_request=5), AUDIO, 185),
        (
            full(audio_s=2_000_000, completion=1),
            AUDIO,
            None,
        ),  # it may have made tokens, and nobody counted them
        (full(audio_s=2_000_000, prompt=1), AUDIO, None),
        (full(images=1), AUDIO, None),  # nothing that was counted has a price
        (full(audio_s=2_000_000), UNKNOWN, None),
        (full(per_request=5), UNKNOWN, None),
        (full(per_request=5), usage(0, 0), 0),  # a tokenizer's answer
        (full(per_request=5), usage(1, 0), 5),
        (card(prompt=0, cached=0, completion=0), AUDIO, None),
    ],
)
def test_a_count_that_is_missing_matters_where_it_has_a_price(
    tariff: RateCard, used: Usage, cost: int | None
) -> None:
    assert price(tariff, used, None).cost_pusd == cost


def test_a_record_shows_the_prices_that_its_card_has() -> None:
    tokens = msgspec.json.encode(card().basis)
    assert b"per_request" not in tokens
    assert b"other" not in tokens
    more = msgspec.json.decode(msgspec.json.encode(full(per_request=5, audio_s=7).basis))
    assert (more["per_request_pusd"], more["other_pusd_per_munit"]) == (5, {"audio_s": 7})
    assert list(more) == sorted(more)


shares = st.integers(1, 512).flatmap(
    lambda total: st.builds(Instance, units=st.integers(1, total), units_total=st.just(total))
)


def derived_cost(uusd: int, instances: list[Instance], slot_ns: int, slots: int) -> int:
    price = InstancePrice(instance_type="t", uusd_per_hour=uusd, date=None, source="test", region=None)
    return SlotRate(price, tuple(instances), slots).cost(slot_ns)


@given(
    st.integers(0, 10**9),
    st.lists(shares, min_size=1, max_size=4),
    st.integers(0, NS_PER_HOUR),
    st.integers(1, 512),
)
def test_derived_sums_the_shares_and_rounds_once(
    uusd: int, instances: list[Instance], slot_ns: int, slots: int
) -> None:
    exact = sum(
        fractions.Fraction(uusd * one.units * slot_ns, 3_600_000 * one.units_total * slots)
        for one in instances
        if one.units is not None and one.units_total is not None
    )
    assert derived_cost(uusd, instances, slot_ns, slots) == half_up(fractions.Fraction(exact))


def test_all_slots_for_an_hour_cost_what_the_instance_does() -> None:
    whole = [Instance(units=24, units_total=24)]
    per_slot = derived_cost(12_981_270, whole, NS_PER_HOUR, 8)
    assert 8 * per_slot == usd_to("12.98127", PUSD)


def test_half_of_the_cores_cost_half() -> None:
    half = [Instance(units=12, units_total=24)]
    assert derived_cost(12_981_270, half, NS_PER_HOUR, 1) * 2 == usd_to("12.98127", PUSD)


def test_derived_needs_no_token_counts() -> None:
    tariff = PriceList([], PriceBook([hourly()])).tariff(host(), NOW_NS)
    assert isinstance(tariff, SlotRate)
    priced = price(tariff, UNKNOWN, NS_PER_S)
    assert priced.cost_pusd == half_up(fractions.Fraction(12_981_270 * NS_PER_S, 3_600_000 * 8))
    assert priced.rate_card is None
    assert priced.price_basis is not None
    assert priced.price_basis.kind == "derived"
    assert priced.price_basis.instance_price_uusd_per_hour == 12_981_270
    assert price(tariff, UNKNOWN, None) == Priced(unpriced_reason=Unpriced.SLOT_TIME_UNKNOWN)


def test_the_card_of_the_exact_type_goes_before_that_of_the_family() -> None:
    of_type, of_family = card("inf2.48xlarge"), card("inf2")
    prices = PriceList([of_family, of_type], PriceBook([hourly()]))
    assert prices.tariff(host(), NOW_NS) == of_type
    assert prices.tariff(host("inf2.xlarge"), NOW_NS) == of_family
    assert prices.tariff(host("trn1.32xlarge"), NOW_NS) is Unpriced.PRICE_UNKNOWN


def test_a_card_of_another_model_is_none() -> None:
    other = RateCard(
        model="qwen", hardware="inf2", prompt=1, cached_prompt=1, completion=1, date="2026-11-01", source="x"
    )
    assert PriceList([other], PriceBook()).tariff(host(), NOW_NS) is Unpriced.PRICE_UNKNOWN


@pytest.mark.parametrize(
    ("served_by", "reason"),
    [
        (host(None), Unpriced.NO_CARD_NO_TYPE),
        (host("p5e.48xlarge"), Unpriced.PRICE_UNKNOWN),
        (host(units=None), Unpriced.UNITS_UNKNOWN),
        (host(slots=None), Unpriced.SLOTS_UNKNOWN),
    ],
)
def test_what_cannot_be_priced_has_a_reason(served_by: Host, reason: Unpriced) -> None:
    tariff = PriceList([], PriceBook([hourly()])).tariff(served_by, NOW_NS)
    assert tariff is reason
    assert price(tariff, usage(1, 1), 5) == Priced(unpriced_reason=reason)


def test_an_unknown_price_of_its_region_is_no_price() -> None:
    abroad = PriceList([], PriceBook([hourly(5, region="us-east-1")]))
    assert abroad.tariff(host(region="eu-west-1"), NOW_NS) is Unpriced.PRICE_UNKNOWN
    assert isinstance(abroad.tariff(host(), NOW_NS), SlotRate)


def dated(date: str, prompt: int, hardware: str = "inf2") -> RateCard:
    return msgspec.structs.replace(card(hardware, prompt=prompt), date=date)


def test_a_call_is_priced_by_the_card_in_force_at_its_admission() -> None:
    july, december = dated("2026-07-01", 1), dated("2026-12-01", 2)
    prices = PriceList([december, july], PriceBook())
    schedule = prices.schedule(host(), NOW_NS)
    change_ns = parse_instant("2026-12-01")
    assert schedule.at(NOW_NS) == schedule.at(change_ns - 1) == july
    assert schedule.at(change_ns) == schedule.at(change_ns + NS_PER_HOUR) == december
    assert prices.schedule(host(), change_ns) == Schedule((), (december,))
    assert prices.tariff(host(), july.since_ns - 1) is Unpriced.PRICE_UNKNOWN


def test_a_new_card_of_the_family_changes_nothing_where_the_type_has_one() -> None:
    of_type = dated("2026-07-01", 1, "inf2.48xlarge")
    prices = PriceList([of_type, dated("2026-12-01", 2)], PriceBook())
    assert prices.schedule(host(), NOW_NS) == Schedule((), (of_type,))


def test_slot_time_is_priced_by_the_instance_price_in_force() -> None:
    change_ns = NOW_NS + NS_PER_S
    later = msgspec.structs.replace(hourly(7), valid_from_ns=change_ns)
    schedule = PriceList([], PriceBook([hourly(5), later])).schedule(host(), NOW_NS)
    found = [schedule.at(at_ns) for at_ns in (NOW_NS, change_ns - 1, change_ns)]
    assert [one.price.uusd_per_hour for one in found if isinstance(one, SlotRate)] == [5, 5, 7]


@given(
    st.lists(
        st.tuples(st.integers(1, 28), st.sampled_from(["inf2", "inf2.48xlarge"])), unique=True, max_size=6
    ),
    st.integers(0, 29 * 24),
    st.integers(0, 29 * 24),
)
def test_a_schedule_says_at_every_moment_what_the_list_does(
    cards: list[tuple[int, str]], from_hour: int, at_hour: int
) -> None:
    day_ns = parse_instant("2026-11-01")
    listed = [dated(f"2026-11-{day:02d}", day, hardware) for day, hardware in cards]
    prices = PriceList(listed, PriceBook([hourly()]))
    from_ns, at_ns = day_ns + from_hour * NS_PER_HOUR, day_ns + (from_hour + at_hour) * NS_PER_HOUR
    assert prices.schedule(host(), from_ns).at(at_ns) == prices.tariff(host(), at_ns)


@pytest.mark.parametrize("reason", [*Unpriced, "something else"])
def test_each_reason_says_what_would_help(reason: str) -> None:
    text = explain(reason, model="llama", backend="b1", instance_type=None)
    assert text
    if reason in (Unpriced.NO_CARD_NO_TYPE, Unpriced.SLOTS_UNKNOWN, Unpriced.UNITS_UNKNOWN):
        assert "backends[b1]" in text
    if reason is Unpriced.PRICE_UNKNOWN:
        assert "prices" in text
        assert "p5e.48xlarge" in explain(reason, model="llama", backend="b1", instance_type="p5e.48xlarge")
