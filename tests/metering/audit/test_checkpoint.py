"""Signed notes: what is signed is what is read, and nothing else verifies."""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from metering.audit import checkpoint
from metering.audit.checkpoint import Head, NotANote, Signer, Verifier

WRITER = "wabcdefghijklmnop"
SIGNER = Signer("weighbridge-journal", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = Signer("weighbridge-journal", Ed25519PrivateKey.from_private_bytes(bytes(32)))
HEAD = Head(WRITER, 4711, hashlib.sha256(b"root").digest(), 1_795_863_600_000_000_000)
NOTE = SIGNER.sign(HEAD)

# The example key of the Go implementation of signed notes (golang.org/x/mod/sumdb/note).
GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
)
GO_SIGNATURE = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="


def test_a_key_of_the_reference_implementation_is_read() -> None:
    verifier = checkpoint.parse_vkey(GO_VKEY)
    assert verifier.name == "PeterNeumann"
    assert verifier.vkey == GO_VKEY
    signed = base64.b64decode(GO_SIGNATURE)
    assert signed[:4] == verifier.key_id


def test_the_reference_implementations_signature_verifies() -> None:
    signed = base64.b64decode(GO_SIGNATURE)
    signature = checkpoint.Signature("PeterNeumann", signed[:4], signed[4:])
    note = checkpoint.Note(HEAD, GO_NOTE, (signature,))
    assert note.signer([checkpoint.parse_vkey(GO_VKEY)]) == checkpoint.parse_vkey(GO_VKEY)
    assert note._replace(text=GO_NOTE + "x").signer([checkpoint.parse_vkey(GO_VKEY)]) is None


def test_what_is_signed_is_read_again() -> None:
    note = checkpoint.parse(NOTE)
    assert note.head == HEAD
    assert note.text == HEAD.text
    assert note.signer([OTHER.verifier, SIGNER.verifier]) == SIGNER.verifier
    assert note.signer([OTHER.verifier]) is None
    assert NOTE.splitlines()[:4] == [
        f"weighbridge/{WRITER}", "4711", base64.b64encode(HEAD.root).decode(), f"at_ns {HEAD.at_ns}",
    ]  # fmt: skip


def test_a_vkey_is_read_again() -> None:
    assert checkpoint.parse_vkey(SIGNER.verifier.vkey + "\n") == SIGNER.verifier


@given(st.integers(0, len(NOTE) - 1), st.characters())
def test_no_altered_note_verifies(at: int, character: str) -> None:
    altered = NOTE[:at] + character + NOTE[at + 1 :]
    try:
        note = checkpoint.parse(altered)
    except NotANote:
        return
    assert altered == NOTE or note.signer([SIGNER.verifier]) is None or note.head == HEAD


def test_a_signature_under_the_keys_name_by_another_counts_for_nothing() -> None:
    forged = Verifier(OTHER.verifier.name, OTHER.verifier.public)
    signed = base64.b64encode(SIGNER.verifier.key_id + bytes(64)).decode()
    note = checkpoint.parse(f"{HEAD.text}\n— weighbridge-journal {signed}\n")
    assert note.signer([SIGNER.verifier, forged]) is None
    short = base64.b64encode(SIGNER.verifier.key_id + bytes(3)).decode()
    assert checkpoint.parse(f"{HEAD.text}\n— weighbridge-journal {short}\n").signer([SIGNER.verifier]) is None


def test_other_signatures_do_not_disturb() -> None:
    cosigned = NOTE + OTHER.sign(HEAD).partition("\n\n")[2]
    assert checkpoint.parse(cosigned).signer([OTHER.verifier]) == OTHER.verifier
    assert checkpoint.parse(cosigned).signer([SIGNER.verifier]) == SIGNER.verifier


@pytest.mark.parametrize(
    "note",
    [
        "",
        HEAD.text,
        HEAD.text + "\n",
        NOTE.rstrip("\n"),
        NOTE.replace("4711", "04711"),
        NOTE.replace("weighbridge/", "elsewhere/"),
        NOTE.replace("at_ns", "when"),
        NOTE.replace("— ", "- "),
        f"{HEAD.text}\n— weighbridge-journal AAAA\n",
        f"{HEAD.text}\n— weighbridge-journal AAAAA\n",
        NOTE + "\n",
    ],
)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(NotANote):
        checkpoint.parse(note)


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        "name",
        "name+00000000",
        "name+00000000+AAAA",
        SIGNER.verifier.vkey.replace("journal", "other"),
        SIGNER.verifier.vkey.replace("+", "+0", 1),
        SIGNER.verifier.vkey[:-4],
        "name+zz+!!",
    ],
)
def test_what_is_no_vkey_is_refused(vkey: str) -> None:
    with pytest.raises(NotANote):
        checkpoint.parse_vkey(vkey)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\n"])
def test_what_is_no_name_of_a_key_is_refused(name: str) -> None:
    with pytest.raises(NotANote):
        Signer(name, Ed25519PrivateKey.generate())
