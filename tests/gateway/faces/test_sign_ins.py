"""Refused sign-ins, gathered: none is lost, and they are few lines."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.faces.sign_ins import NAMED_MAX, SignIns

TRIES = st.lists(
    st.tuples(st.sampled_from([401, 403]), st.none() | st.integers(0, 200).map(str)), max_size=400
)


@given(TRIES)
def test_their_number_is_kept_and_their_lines_are_bounded(tries: list[tuple[int, str | None]]) -> None:
    sign_ins = SignIns()
    for status, key_id in tries:
        sign_ins.refused("audit", status, key_id)
    told = sign_ins.told()
    assert sum(int(event.data["count"]) for event in told) == len(tries)
    for status in (401, 403):
        counts = [int(event.data["count"]) for event in told if event.data["status"] == str(status)]
        assert sum(counts) == sum(tried == status for tried, _ in tries)
    assert len(told) <= NAMED_MAX + 2  # those of no name
    assert {event.actor for event in told} <= {key_id for _, key_id in tries} | {None}
    assert sign_ins.told() == []


def test_beyond_so_many_keys_the_rest_is_counted_together() -> None:
    sign_ins = SignIns()
    for number in range(NAMED_MAX + 7):
        sign_ins.refused("audit", 403, f"{number:012d}")
    *named, rest = sign_ins.told()
    assert len(named) == NAMED_MAX
    assert (rest.actor, rest.data["count"]) == (None, "7")
