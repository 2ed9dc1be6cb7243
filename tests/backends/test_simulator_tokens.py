import itertools

from hypothesis import given
from hypothesis import strategies as st

from backends.simulator.tokens import ANSWER_TOKENS_MIN, chat_tokens, natural_length, seed_of, tokenize, words


def test_tokens() -> None:
    assert tokenize("Name 3 rivers, please.") == ["Name", "3", "rivers", ",", "please", "."]
    assert tokenize("a" * 25) == ["a" * 12, "a" * 12, "a"]
    assert tokenize("é🚛") == ["é", "🚛"]
    assert tokenize(" \n\t") == []


def test_a_chat_prompt_costs_what_the_docs_say() -> None:
    assert len(chat_tokens([("user", "Name 3 rivers.")])) == 1 + (4 + 4) + 3
    assert len(chat_tokens([("system", ""), ("user", "hi")])) == 1 + 4 + (4 + 1) + 3


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), min_size=1), st.text())
def test_the_prompts_of_a_conversation_share_a_front(messages: list[tuple[str, str]], text: str) -> None:
    before, after = chat_tokens(messages), chat_tokens([*messages, ("user", text)])
    assert after[: len(before) - 3] == before[:-3]  # all but the answer's heading


@given(st.integers(0, 2**64 - 1), st.integers(1, 200))
def test_an_answer_has_as_many_tokens_as_were_drawn(seed: int, count: int) -> None:
    assert len(tokenize("".join(itertools.islice(words(seed), count)))) == count


@given(st.lists(st.text(), min_size=1), st.integers(0, 5))
def test_the_same_prompt_has_the_same_answer(tokens: list[str], index: int) -> None:
    seed = seed_of(tokens, index)
    assert seed == seed_of(list(tokens), index)
    assert seed != seed_of(tokens, index + 1)
    assert list(itertools.islice(words(seed), 20)) == list(itertools.islice(words(seed), 20))
    assert natural_length(seed) >= ANSWER_TOKENS_MIN


def test_text_has_full_stops_and_no_leading_blank() -> None:
    text = "".join(itertools.islice(words(7), 400))
    assert "." in text
    assert not text.startswith(" ")
    assert ".." not in text


def test_half_a_character_is_no_obstacle() -> None:
    assert seed_of(["\ud83d"], 0) >= 0
