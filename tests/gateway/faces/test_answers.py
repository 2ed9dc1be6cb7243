"""How a process says its answer."""

import msgspec
import pytest

from gateway.faces import answers
from gateway.faces.answers import LENGTH_BYTES, Answer, Download, Sent

SENT = Sent(what="json", period="a/b", rows=2, sha256="0" * 64)
ANSWER = Answer(status=200, file_name="f.jsonl")


def read(data: bytes) -> tuple[Answer, list[bytes], bytes]:
    """The first frame, the others up to the empty one, and the rest. By hand, from the page of the format."""
    frames: list[bytes] = []
    while not frames or frames[-1]:
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        frames.append(data[LENGTH_BYTES : LENGTH_BYTES + length])
        data = data[LENGTH_BYTES + length :]
    return msgspec.json.decode(frames[0], type=Answer), frames[1:-1], data


@pytest.mark.parametrize("pieces", [[], [b"a"], [b"a", b"", b"b\n" * 100_000]])
def test_a_file_comes_in_pieces_and_its_end_with_what_it_was(pieces: list[bytes]) -> None:
    answer, found, rest = read(b"".join(answers.frames(Download(ANSWER, pieces, lambda: SENT))))
    assert (answer, found) == (ANSWER, [piece for piece in pieces if piece])
    assert msgspec.json.decode(rest, type=Sent) == SENT


def test_what_fails_before_its_first_piece_has_said_nothing() -> None:
    def failing() -> object:
        raise OSError("gone")
        yield

    with pytest.raises(OSError, match="gone"):
        next(answers.frames(Download(ANSWER, failing(), lambda: SENT)))  # type: ignore[arg-type]


def test_any_content_fits_into_a_frame() -> None:
    """What another gateway has sent may have newlines."""
    answer = Answer(status=200, content=msgspec.Raw(b'{"a":\n1}'))
    data = answers.framed(answer)
    assert int.from_bytes(data[:LENGTH_BYTES], "big") == len(data) - LENGTH_BYTES
    assert bytes(msgspec.json.decode(data[LENGTH_BYTES:], type=Answer).content) == b'{"a":\n1}'
