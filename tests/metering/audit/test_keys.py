"""Keys as files: made once, replaced on request, never read by others."""

import os
import pathlib
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from metering.audit.keyring import OVERLAP_NS
from metering.audit.keys import KEYS, Keys, KeysError, untold


def pem(private: object = None, password: bytes | None = None) -> bytes:
    key = private or Ed25519PrivateKey.generate()
    hidden = BestAvailableEncryption(password) if password else NoEncryption()
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)  # type: ignore[attr-defined]
    return made


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_key_is_made_once_and_for_its_owner_only(tmp_path: pathlib.Path) -> None:
    keys = Keys(tmp_path / "state")
    assert keys.stamp() is None
    signer = keys.ensure(5).signer
    key_id = signer.verifier.key_id.hex()
    assert Keys(tmp_path / "state").ensure(9).signer.verifier == signer.verifier
    ring = keys.load()
    assert [(key.vkey, key.from_ns, key.until_ns) for key in ring.keys] == [(signer.verifier.vkey, 5, None)]
    assert keys.signing_key(ring).signer.verifier == signer.verifier
    assert sorted(path.name for path in keys.path.iterdir()) == sorted([KEYS, "lock", f"{key_id}.pem"])
    assert mode(keys.path) == 0o700
    assert mode(keys.path / f"{key_id}.pem") == 0o600


def test_a_new_key_follows_the_old_one(tmp_path: pathlib.Path) -> None:
    keys = Keys(tmp_path)
    old, stamp = keys.ensure(5).signer, keys.stamp()
    ring = keys.rotate(100, untold)
    assert keys.load().keys == ring.keys
    assert keys.stamp() != stamp
    assert [(key.from_ns, key.until_ns, key.ended_because) for key in ring.keys] == [
        (5, 100 + OVERLAP_NS, "rotated"),
        (100, None, None),
    ]
    assert keys.signing_key(ring).signer.verifier != old.verifier


def test_a_stolen_key_is_replaced_at_once(tmp_path: pathlib.Path) -> None:
    keys = Keys(tmp_path)
    stolen = keys.ensure(5).signer.verifier.key_id.hex()
    ring = keys.end(stolen, 50, 100, untold)
    assert [(key.from_ns, key.until_ns, key.ended_because) for key in ring.keys] == [
        (5, 50, "stolen"),
        (100, None, None),
    ]
    before = keys.signing_key(ring).signer.verifier
    assert keys.signing_key(keys.end(stolen, 20, 200, untold)).signer.verifier == before, (
        "the present one was not stolen"
    )
    with pytest.raises(KeysError, match="there is no key 0"):
        keys.end("0", 20, 200, untold)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_what_root_makes_is_the_gateways(tmp_path: pathlib.Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    keys = Keys(tmp_path)
    keys.ensure(5)
    keys.rotate(100, untold)
    made = [keys.path, *keys.path.iterdir()]
    assert len(made) == 5
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(1234, 1234)}


def test_a_lost_private_key_is_replaced(tmp_path: pathlib.Path) -> None:
    keys = Keys(tmp_path)
    lost = keys.ensure(5).signer.verifier.key_id.hex()
    (keys.path / f"{lost}.pem").unlink()
    with pytest.raises(KeysError, match=f"{lost}.pem"):
        keys.signing_key(keys.load())
    assert keys.ensure(100).signer.verifier.key_id.hex() != lost
    assert len(keys.load().keys) == 2


def test_an_operators_key_is_taken_and_nothing_is_made(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "secret.pem"
    file.write_bytes(pem())
    keys = Keys(tmp_path / "state", file)
    signer = keys.ensure(5).signer
    assert keys.ensure(6).signer.verifier == signer.verifier
    assert list(keys.path.glob("*.pem")) == []
    with pytest.raises(KeysError, match=r"secret\.pem: the key .* has been used before; a new one is needed"):
        keys.rotate(7, untold)
    first = file.read_bytes()
    file.write_bytes(pem())
    with pytest.raises(KeysError, match=r"secret\.pem is not the key .* that signs now"):
        keys.signing_key(keys.load())
    ring = keys.rotate(8, untold)
    assert keys.signing_key(ring).signer.verifier != signer.verifier
    file.write_bytes(pem())
    assert len({keys.ensure(9).signer.verifier, keys.signing_key(keys.load()).signer.verifier}) == 1, (
        "a start takes it up as well"
    )
    file.write_bytes(first)
    with pytest.raises(KeysError, match="has been used before"):
        keys.ensure(10, untold)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "No such file"),
        (b"", "no private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no private key"),
        (pem(password=b"secret"), "no private key in PEM without a password"),
        (pem(generate_private_key(SECP256R1())), "another kind than Ed25519"),
    ],
)
def test_a_file_that_is_no_key_is_named(tmp_path: pathlib.Path, data: bytes | None, says: str) -> None:
    file = tmp_path / "secret.pem"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(KeysError, match=rf"secret\.pem.*{says}"):
        Keys(tmp_path / "state", file).ensure(5, untold)


def test_a_list_of_keys_that_is_none_is_named_and_kept(tmp_path: pathlib.Path) -> None:
    keys = Keys(tmp_path)
    with pytest.raises(KeysError, match="has no key to sign with"):
        keys.signing_key(keys.load())
    keys.path.mkdir()
    (keys.path / KEYS).write_text("[")
    with pytest.raises(KeysError, match=r"keys\.json: these are no keys"):
        keys.ensure(5, untold)
    assert (keys.path / KEYS).read_text() == "["
    (keys.path / KEYS).unlink()
    (keys.path / KEYS).mkdir()
    with pytest.raises(KeysError, match=r"keys\.json: Is a directory"):
        keys.load()


def test_a_list_that_cannot_be_replaced_leaves_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path)
    keys.ensure(5, untold)
    before = (keys.path / KEYS).read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="No space left"):
        keys.rotate(9, untold)
    assert (keys.path / KEYS).read_bytes() == before
    assert list(keys.path.glob(".*")) == []
