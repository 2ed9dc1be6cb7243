"""Keys and the times at which they were good."""

import json

import pytest

from metering.audit import checkpoint, trust
from metering.audit.checkpoint import Head, Note, Signer
from metering.audit.keyring import OVERLAP_NS, Key, Keyring, KeyringError
from metering.audit.trust import Signed, Trust
from tests.support import signing
from tests.support.journals import AT_NS, WRITER

FIRST, SECOND, THIRD = (signing.signer(number) for number in (1, 2, 3))


def id_of(signer: Signer) -> str:
    return signer.verifier.key_id.hex()


def note(signer: Signer, at_ns: int) -> Note:
    return checkpoint.parse(signer.sign(Head(WRITER, 1, bytes(32), at_ns)))


def counts(ring: Keyring, signer: Signer, at_ns: int) -> bool:
    return isinstance(Trust(ring.keys).judge(note(signer, at_ns)), Signed)


def rotated() -> Keyring:
    """The first key from 0 on, the second from 1,000 on."""
    return Keyring().with_new(FIRST.verifier.vkey, 0).with_new(SECOND.verifier.vkey, 1_000)


def test_the_file_is_canonical_and_read_back() -> None:
    ring = rotated()
    assert ring.encode() == (
        b'[{"ended_because":"rotated","from_ns":0,"until_ns":%d,"vkey":"%s"},'
        b'{"ended_because":null,"from_ns":1000,"until_ns":null,"vkey":"%s"}]\n'
        % (1_000 + OVERLAP_NS, FIRST.verifier.vkey.encode(), SECOND.verifier.vkey.encode())
    )
    assert Keyring.parse(ring.encode()).keys == ring.keys


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        b'[{"from_ns":0,"vkey":"none"}]',
        json.dumps([{"from_ns": 0, "vkey": FIRST.verifier.vkey}] * 2).encode(),
        json.dumps([{"from_ns": 0, "vkey": FIRST.verifier.vkey, "ended_because": "tired"}]).encode(),
    ],
)
def test_what_is_no_list_of_keys_is_refused(data: bytes) -> None:
    with pytest.raises(KeyringError):
        Keyring.parse(data)


def test_the_newest_key_signs() -> None:
    assert Keyring().current is None
    current = rotated().current
    assert current is not None
    assert current.id == id_of(SECOND)


@pytest.mark.parametrize(
    ("signer", "at_ns", "good"),
    [
        (FIRST, 0, True),
        (FIRST, 1_000 + OVERLAP_NS - 1, True),  # running workers sign the change with it
        (FIRST, 1_000 + OVERLAP_NS, False),
        (SECOND, 999, False),  # before it was made
        (SECOND, 1_000, True),
        (SECOND, 10**19, True),
        (THIRD, 1_000, False),  # nobody knows it
    ],
)
def test_a_key_counts_only_while_it_is_good(signer: Signer, at_ns: int, good: bool) -> None:
    assert counts(rotated(), signer, at_ns) == good


def test_a_key_is_never_used_again() -> None:
    with pytest.raises(KeyringError, match=f"the key {id_of(FIRST)} has been used before"):
        rotated().with_new(FIRST.verifier.vkey, 2_000)


def test_a_stolen_key_was_good_until_then() -> None:
    ring = rotated().with_stolen(id_of(SECOND), 1_500)
    assert ring.keys[1] == Key(
        ended_because="stolen", from_ns=1_000, until_ns=1_500, vkey=SECOND.verifier.vkey
    )
    assert ring.current is None
    assert counts(ring, SECOND, 1_499)
    assert not counts(ring, SECOND, 1_500)
    again = ring.with_new(THIRD.verifier.vkey, 2_000)
    assert again.keys[:2] == ring.keys, "an ended key's end stays"


def test_a_rotated_key_that_was_stolen_is_not_good_for_longer() -> None:
    ring = rotated().with_stolen(id_of(FIRST), AT_NS)
    assert (ring.keys[0].until_ns, ring.keys[0].ended_because) == (1_000 + OVERLAP_NS, "stolen")
    assert rotated().with_stolen(id_of(FIRST), 500).keys[0].until_ns == 500


def test_what_cannot_have_been_stolen_is_refused() -> None:
    with pytest.raises(KeyringError, match="there is no key 00000000"):
        rotated().with_stolen("00000000", 1)
    with pytest.raises(KeyringError, match="was made after that"):
        rotated().with_stolen(id_of(SECOND), 999)


def test_the_test_finds_a_keyring_that_does_not_ask_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_outside", lambda _key, _at_ns: None)
    with pytest.raises(AssertionError):
        test_a_key_counts_only_while_it_is_good(FIRST, 1_000 + OVERLAP_NS, good=False)
