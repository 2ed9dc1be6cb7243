"""Questions to the audit face: what is understood, and what is told of what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import InvalidRequest, NotFound
from gateway.faces import audit_questions
from gateway.faces.audit_questions import COUNT_MAX, FOREVER_NS, Call, Changes, Checkpoints, changes, cursor
from metering.units import NS_PER_S

WRITER = "w" + "a" * 16
ALL = Changes(from_ns=0, to_ns=FOREVER_NS, topic=None, after=None, count=100)


def test_all_changes_are_the_default() -> None:
    assert changes({}) == ALL


def test_a_period_a_topic_and_a_page() -> None:
    query = {"from": "1970-01-02", "to": "1970-01-02T01:00:00+01:00", "topic": "config"}
    found = changes(query | {"after": f"5-{WRITER}-7", "count": "1"})
    day_ns = 86_400 * NS_PER_S
    assert found == Changes(from_ns=day_ns, to_ns=day_ns, topic="config", after=(5, WRITER, 7), count=1)


@given(
    st.integers(0, FOREVER_NS),
    st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=16, max_size=16),
    st.integers(1, 2**53),
)
def test_a_cursor_leads_to_its_place(at_ns: int, letters: str, seq: int) -> None:
    place = at_ns, f"w{letters}", seq
    assert changes({"after": cursor(place)}).after == place


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "now"}, "from"),
        ({"to": "2026-13-01"}, "to"),
        ({"count": "0"}, "count"),
        ({"count": str(COUNT_MAX + 1)}, "count"),
        ({"count": "²"}, "count"),
        ({"count": "-1"}, "count"),
        ({"after": "x"}, "after"),
        ({"colour": "red"}, "colour"),
        ({"topic": ""}, "topic"),
        ({"topic": "x" * 129}, "topic"),
        ({"topic": "a\nb"}, "topic"),
    ],
)
def test_what_is_wrong_is_named(query: dict[str, str], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        changes(query)
    assert caught.value.param == param


def test_times_before_1970_are_its_beginning() -> None:
    assert changes({"from": "1066-10-14"}).from_ns == 0
    assert changes({"to": "9999-12-31"}).to_ns == FOREVER_NS


def test_a_call_is_asked_for_by_its_id() -> None:
    assert audit_questions.call(f"{WRITER}-7", ask_others=True) == Call(
        call_id=f"{WRITER}-7", ask_others=True
    )
    proof = audit_questions.proof(f"{WRITER}-7", ask_others=False)
    assert (proof.call_id, proof.ask_others) == (f"{WRITER}-7", False)
    for id_ in ("", "w-1", f"{WRITER}-0", f"{WRITER}-x", f"../{WRITER}-1", "x" * 5000):
        with pytest.raises(NotFound):
            audit_questions.call(id_, ask_others=True)


def test_checkpoints_of_one_writer_or_of_all() -> None:
    assert audit_questions.checkpoints({}) == Checkpoints(writer=None)
    assert audit_questions.checkpoints({"writer": WRITER}) == Checkpoints(writer=WRITER)
    with pytest.raises(InvalidRequest):
        audit_questions.checkpoints({"from": "x"})


QUERIES = st.dictionaries(
    st.sampled_from(["from", "to", "topic", "after", "count", "x"]) | st.text(max_size=3),
    st.text(max_size=20),
)


@given(QUERIES)
def test_whatever_is_asked_it_is_a_question_or_an_error(query: dict[str, str]) -> None:
    try:
        found = changes(query)
    except InvalidRequest:
        return
    assert 1 <= found.count <= COUNT_MAX
    assert found.from_ns >= 0
