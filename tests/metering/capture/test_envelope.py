"""Content encrypted to a tenant's key: as RFC 9180 has it, for that key alone, bound to all that stands before it."""

import base64
import pathlib
import stat

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from metering.capture import frame
from metering.capture.envelope import ContentKeyError, NotOpened, Opener, Recipient
from tests.metering.capture.test_frame import header
from tests.support import hpke

PRIVATE = X25519PrivateKey.generate()
OPENER = Opener(PRIVATE)
RECIPIENT = Recipient.parse(OPENER.recipient.text)
# RFC 9180, appendix A.3 has no vectors of this suite; X25519 with AES-256-GCM is the oracle's, from the RFC's text.


def sealed(prompt: bytes, answer: bytes) -> bytes:
    return RECIPIENT.seal(header(len(prompt), len(answer), key=RECIPIENT.id), prompt, answer)


@given(st.binary(max_size=2_000), st.binary(max_size=2_000))
def test_the_oracle_and_the_opener_read_what_was_sealed(prompt: bytes, answer: bytes) -> None:
    one = frame.parse(sealed(prompt, answer))
    assert hpke.open_box(PRIVATE, one.box, one.front) == prompt + answer
    assert OPENER.open(one) == (prompt, answer)


@given(st.data())
def test_any_other_byte_is_found(data: st.DataObject) -> None:
    one = sealed(b"a prompt", b"an answer")
    at = data.draw(st.integers(0, len(one) - 1))
    altered = bytearray(one)
    altered[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((frame.NotAFrame, NotOpened)):
        OPENER.open(frame.parse(bytes(altered)))


def test_a_box_under_another_header_does_not_open() -> None:
    one = frame.parse(sealed(b"a prompt", b"an answer"))
    other = frame.front(header(8, 9, key=RECIPIENT.id, call_id="w-2"))
    with pytest.raises(NotOpened, match="was altered"):
        OPENER.open(one._replace(front=other))
    with pytest.raises(InvalidTag):
        hpke.open_box(PRIVATE, one.box, other)


def test_no_two_boxes_are_the_same() -> None:
    assert sealed(b"p", b"a") != sealed(b"p", b"a")


def test_another_key_is_told(tmp_path: pathlib.Path) -> None:
    other = Opener.new()
    with pytest.raises(NotOpened, match=f"for the key {RECIPIENT.id}, and this is {other.recipient.id}"):
        other.open(frame.parse(sealed(b"p", b"a")))
    other.write_new(tmp_path / "k.pem")
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    assert Opener.load(tmp_path / "k.pem").recipient.text == other.recipient.text
    with pytest.raises(FileExistsError):
        other.write_new(tmp_path / "k.pem")


@pytest.mark.parametrize(
    "text",
    [
        "x25519:",
        "x25519:AAAA",
        "x25519:" + "!" * 44,
        base64.b64encode(bytes(range(32))).decode(),
    ],
)
def test_what_is_no_public_key_is_told(text: str) -> None:
    with pytest.raises(ContentKeyError, match="must be x25519:"):
        Recipient.parse(text)


@pytest.mark.parametrize(
    "raw",  # of small order: RFC 7748, section 6.1, and https://cr.yp.to/ecdh.html#validate
    [
        bytes(32),
        b"\x01" + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    ],
)
def test_a_key_that_hides_nothing_is_refused(raw: bytes) -> None:
    with pytest.raises(ContentKeyError, match="no key that anybody"):
        Recipient.parse("x25519:" + base64.b64encode(raw).decode())


def test_what_is_no_private_key_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "k.pem"
    path.write_bytes(b"nothing")
    with pytest.raises(ContentKeyError, match="no private key in PEM"):
        Opener.load(path)
    secret = BestAvailableEncryption(b"secret")
    path.write_bytes(PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    with pytest.raises(ContentKeyError, match="without a password"):
        Opener.load(path)
    path.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(ContentKeyError, match="another kind than X25519"):
        Opener.load(path)
