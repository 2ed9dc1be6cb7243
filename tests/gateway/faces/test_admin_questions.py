"""What the admin face is asked: read, bounded, and of this machine where it listens for itself."""

import pytest

from gateway.api.errors import InvalidRequest
from gateway.faces import admin_questions


def test_a_body_is_an_object() -> None:
    assert admin_questions.body(b" ") == {}
    assert admin_questions.body(b'{"a":1}') == {"a": 1}
    for data in (b"[]", b"{", b"\xff", b"[" * 100_000, b"1"):
        with pytest.raises(InvalidRequest):
            admin_questions.body(data)


def test_what_takes_nothing_says_so() -> None:
    admin_questions.nothing({})
    with pytest.raises(InvalidRequest, match="takes no body"):
        admin_questions.nothing({"x": 1})


def test_an_overlap() -> None:
    assert admin_questions.overlap_s({}) == 86_400
    assert admin_questions.overlap_s({"overlap_s": 0}) == 0
    for value in (-1, True, 1.5, "1", None, 10**9):
        with pytest.raises(InvalidRequest):
            admin_questions.overlap_s({"overlap_s": value})
    with pytest.raises(InvalidRequest, match="takes overlap_s"):
        admin_questions.overlap_s({"overlap": 1})


def test_a_version() -> None:
    assert [admin_questions.version(text) for text in (None, "*", "3", '"3"', 'W/"3"', ' "12" ')] == [
        None, None, 3, 3, 3, 12,
    ]  # fmt: skip
    for text in ("", "x", "0", '"3', "3, 4", "-1", "9" * 19):
        if text == '"3':
            assert admin_questions.version(text) == 3
            continue
        with pytest.raises(InvalidRequest):
            admin_questions.version(text)


@pytest.mark.parametrize(
    ("host", "local", "allowed"),
    [
        ("localhost:8080", "127.0.0.1", True),
        ("LOCALHOST", "::1", True),
        ("127.0.0.1:8080", "127.0.0.1", True),
        ("[::1]:8080", "::1", True),
        ("::1", "::1", True),
        ("192.0.2.1", "127.0.0.1", True),  # an address is nobody's name
        ("evil.example:8080", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
        ("gateway.example", "10.0.0.1", True),  # open to others: names are theirs
        ("gateway.example", None, True),
    ],
)
def test_a_page_of_a_stranger_has_another_name(host: str | None, local: str | None, allowed: bool) -> None:
    assert admin_questions.is_of_this_machine(host, local) is allowed
