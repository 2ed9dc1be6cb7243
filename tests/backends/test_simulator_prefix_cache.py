import random

from hypothesis import given
from hypothesis import strategies as st

from backends.simulator.prefix_cache import BLOCK_TOKENS, PrefixCache

prompts = st.lists(st.sampled_from("ab"), min_size=1, max_size=100)


def test_whole_blocks_but_for_the_last_token() -> None:
    cache = PrefixCache(100)
    tokens = [str(n) for n in range(48)]
    assert cache.take(tokens, None) == 0
    assert cache.take(tokens, None) == 32  # its last token is computed anew, and with it the third block
    assert cache.take([*tokens, "x"], None) == 48
    assert cache.take(tokens[:15], None) == 0


def test_a_salt_shares_with_itself_only() -> None:
    cache = PrefixCache(100)
    tokens = ["t"] * 33
    assert cache.take(tokens, "one") == 0
    assert cache.take(tokens, "two") == 0
    assert cache.take(tokens, None) == 0
    assert cache.take(tokens, "one") == 32


def test_the_least_recently_used_go_first_and_fronts_last() -> None:
    cache = PrefixCache(3)
    old, new = ["o"] * 33, ["n"] * 33
    cache.take(old, None)
    cache.take(new, None)
    assert len(cache) == 3
    assert cache.take(old, None) == 16  # its second block went, its first was still there
    assert cache.take(["n"] * 17, None) == 16


@given(st.lists(prompts, max_size=20), st.integers(1, 8))
def test_hits_are_a_true_prefix_and_the_cache_is_bounded(asked: list[list[str]], blocks_max: int) -> None:
    cache = PrefixCache(blocks_max)
    seen: list[list[str]] = []
    for tokens in asked:
        hits = cache.take(tokens, None)
        assert hits % BLOCK_TOKENS == 0
        assert hits < len(tokens)
        assert hits == 0 or any(tokens[:hits] == before[:hits] for before in seen)
        assert len(cache) <= blocks_max
        seen.append(tokens)


@given(prompts, st.randoms(use_true_random=False))
def test_an_unbounded_cache_finds_all_there_is(tokens: list[str], rng: random.Random) -> None:
    cache = PrefixCache(10_000)
    cut = rng.randint(1, len(tokens))
    cache.take(tokens[:cut], None)
    expected = min(cut // BLOCK_TOKENS, (len(tokens) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
    assert cache.take(tokens, None) == expected
