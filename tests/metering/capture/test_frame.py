"""The frame of a call's content: what is written is read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.capture import frame
from metering.capture.frame import BOX_EXTRA_BYTES, Header, NotAFrame


def header(prompt: int = 3, answer: int = 4, **more: object) -> Header:
    values = {
        "answer_bytes": answer, "answer_kept_bytes": answer, "call_id": "w-1", "key": "0badf00d",
        "prompt_bytes": prompt, "prompt_kept_bytes": prompt, "tenant": "acme",
    }  # fmt: skip
    return Header(**values | more)


def framed(one: Header) -> bytes:
    return frame.front(one) + bytes(one.box_bytes)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=5), st.data())
def test_frames_are_read_one_behind_the_other_up_to_a_torn_one(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    whole = [framed(header(*size)) for size in sizes]
    file = b"".join(whole)
    cut = data.draw(st.integers(0, len(file)))
    read = list(frame.scan(file[:cut]))
    ends, at = [], 0
    for one in whole:
        ends.append(at + len(one))
        at += len(one)
    assert len(read) == sum(end <= cut for end in ends)
    for (begins, found), one, end in zip(read, whole, ends, strict=False):
        assert file[begins:end] == one == found.front + found.box


@given(st.data())
def test_another_length_is_no_frame(data: st.DataObject) -> None:
    one = framed(header())
    with pytest.raises(NotAFrame):
        frame.parse(one[: data.draw(st.integers(0, len(one) - 1))])
    with pytest.raises(NotAFrame, match="bytes are not"):
        frame.parse(one + b"x")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"WBC2", "does not begin as a frame"),
        (b"WBC1\xff\xff\xff\xff", "does not begin as a frame"),
    ],
)
def test_it_begins_as_one(wrong: bytes, says: str) -> None:
    with pytest.raises(NotAFrame, match=says):
        frame.parse(wrong + framed(header())[len(wrong) :])


def test_its_header_is_one_of_this_version_whose_lengths_agree() -> None:
    good = framed(header())
    with pytest.raises(NotAFrame, match="cannot be read"):
        frame.parse(good.replace(b'"v":1', b'"v":"'))
    with pytest.raises(NotAFrame, match="version 2"):
        frame.parse(good.replace(b'"v":1', b'"v":2'))
    with pytest.raises(NotAFrame, match="contradict"):
        frame.parse(good.replace(b'"prompt_kept_bytes":3', b'"prompt_kept_bytes":4'))
    shorter = framed(header(answer=4, prompt=10))
    with pytest.raises(NotAFrame):
        frame.parse(shorter.replace(b'"prompt_kept_bytes":10', b'"prompt_kept_bytes":-6'))


def test_it_says_that_it_was_cut() -> None:
    assert not header().is_cut
    assert header(prompt_bytes=4).is_cut
    assert header(answer_bytes=5).is_cut
    assert header(5, 6).box_bytes == 11 + BOX_EXTRA_BYTES
