"""A writer's tree against one made by the plain definition, and whose key signs when."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.audit import checkpoint, notary
from metering.audit.checkpoint import Head
from tests.support import signing
from tests.support.journals import AT_NS, WRITER


def leaves_of(count: int) -> list[bytes]:
    return [hashlib.sha256(b"%d" % n).digest() for n in range(count)]


def root_of(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word by word."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


@given(st.lists(st.integers(0, 600), max_size=6))
def test_what_is_signed_is_the_tree_of_all_lines_however_they_came(turns: list[int]) -> None:
    leaves = leaves_of(sum(turns))
    one, done = signing.notary(WRITER), 0
    for lines in turns:
        one.add([leaf.hex() for leaf in leaves[done : done + lines]])
        done += lines
        assert one.size == done
        signed = one.checkpoint(AT_NS)
        assert signed.head == Head(WRITER, done, root_of(leaves[:done]), AT_NS)
        note = checkpoint.parse(signed.note)
        assert note.head == signed.head
        assert note.signer([signing.signer().verifier]) == signing.signer().verifier
        assert signed.key_id == signing.signer().verifier.key_id.hex()


def test_a_checkpoints_own_line_calls_for_no_other() -> None:
    one = signing.notary(WRITER)
    one.add([leaf.hex() for leaf in leaves_of(3)])
    assert one.unsigned == 3
    one.checkpoint(AT_NS)
    one.add([leaf.hex() for leaf in leaves_of(1)])
    assert one.unsigned == 0
    one.add([leaf.hex() for leaf in leaves_of(2)])
    assert one.unsigned == 2


def test_leaves_are_taken_in_by_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no checkpoint has to take in a thousand."""
    one = signing.notary(WRITER)
    for _ in range(notary.CHUNK_LEAVES):
        one.add(["00" * 32])
    assert one._leaves == []
    assert one.size == notary.CHUNK_LEAVES


def test_an_old_key_signs_once_more_and_then_never() -> None:
    old, new = signing.key(1), signing.key(2)
    one = notary.Notary(WRITER, old)
    one.succeed(new, at_once=False)
    assert [one.checkpoint(AT_NS).key_id for _ in range(3)] == [
        old.signer.verifier.key_id.hex(),
        *[new.signer.verifier.key_id.hex()] * 2,
    ]


def test_a_stolen_key_signs_no_more() -> None:
    old, newer, newest = (signing.key(number) for number in (1, 2, 3))
    one = notary.Notary(WRITER, old)
    one.succeed(newer, at_once=False)
    one.succeed(newest, at_once=True)
    assert one.checkpoint(AT_NS).key_id == newest.signer.verifier.key_id.hex()


def test_the_end_is_signed_by_the_new_key() -> None:
    one = signing.notary(WRITER)
    one.succeed(signing.key(2), at_once=False)
    assert one.end(AT_NS).key_id == signing.signer(2).verifier.key_id.hex()


def test_a_note_agrees_with_the_lines_so_far_and_with_no_others() -> None:
    one = signing.notary(WRITER)
    one.add([leaf.hex() for leaf in leaves_of(5)])
    note = one.checkpoint(AT_NS).note
    assert one.agrees(note)
    assert not one.agrees("no note")
    assert not one.agrees(note.replace(WRITER, "w" + "b" * 16))
    one.add([leaf.hex() for leaf in leaves_of(1)])
    assert not one.agrees(note)
    other = signing.notary(WRITER)
    other.add([leaf.hex() for leaf in reversed(leaves_of(5))])
    assert not other.agrees(note)


def test_times_never_go_back_nor_before_the_key() -> None:
    """A clock that is set back must not make good signatures look as if nobody might have made them."""
    one = notary.Notary(WRITER, notary.SigningKey(signing.signer(1), 50))
    times = [one.checkpoint(at_ns).head.at_ns for at_ns in (10, 60, 55)]
    one.succeed(notary.SigningKey(signing.signer(2), 70), at_once=True)
    assert [*times, one.end(65).head.at_ns] == [50, 60, 60, 70]
