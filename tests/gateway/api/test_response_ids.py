"""Ids that say whose a response is and where it lies: true to whoever made it, mute to everybody else."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import response_ids
from gateway.api.response_ids import holder, mint

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
CALL_IDS = st.builds("w{}-{}".format, st.text("abcdefgh234567", min_size=16, max_size=16), st.integers(1))
PLACES = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=6, unique=True)


@given(st.data(), CALL_IDS, NAMES, PLACES)
def test_the_place_is_found_again_by_its_tenant_alone(
    data: st.DataObject, call_id: str, tenant: str, places: list[tuple[str, str]]
) -> None:
    place = data.draw(st.sampled_from(places))
    other = data.draw(NAMES.filter(lambda name: name != tenant))
    made = mint(call_id, tenant=tenant, model=place[0], backend=place[1])
    assert holder(made, tenant=tenant, places=places) == place
    assert holder(made, tenant=other, places=places) is None
    assert holder(made, tenant=tenant, places=[one for one in places if one != place]) is None


@given(CALL_IDS, NAMES, NAMES, NAMES)
def test_it_looks_like_vllms_own(call_id: str, tenant: str, model: str, backend: str) -> None:
    made = mint(call_id, tenant=tenant, model=model, backend=backend)
    assert made.startswith("resp_")
    assert len(made) == len("resp_") + 32
    assert made == mint(call_id, tenant=tenant, model=model, backend=backend)


def test_nothing_that_differs_gives_the_same_id() -> None:
    words = ("a", "b", "ab", "a-b")
    made = [
        mint(call, tenant=tenant, model=model, backend=backend)
        for call, tenant, model, backend in itertools.product(words, repeat=4)
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resp_",
        "resp_0123456789abcdef",
        "resp_" + "0" * 32,
        "resp_" + "G" * 32,
        "../../v1/models",
        "resp_\n",
    ],
)
def test_what_is_no_id_of_ours_lies_nowhere(text: str) -> None:
    assert holder(text, tenant="acme", places=[("m1", "b1")]) is None


@given(st.text(max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    assert holder(text, tenant="acme", places=[("m1", "b1"), ("m1", "b2")]) is None


def test_an_id_that_forgot_its_tenant_would_be_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what keeps tenants apart is that word, and nothing else."""
    digest = response_ids._digest
    monkeypatch.setattr(response_ids, "_digest", lambda first, *more: digest(first, *more[1:]))
    made = mint("w-1", tenant="acme", model="m1", backend="b1")
    assert holder(made, tenant="globex", places=[("m1", "b1")]) == ("m1", "b1")
