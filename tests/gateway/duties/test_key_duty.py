"""The clerk's look at the key that signs."""

import pathlib
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.configuration.config import Config, Journal
from gateway.duties.key_duty import KeyDuty
from metering.audit.keys import KEYS, Keys, KeysError
from metering.journal.journal import directories
from metering.record import Event


def config(state_dir: pathlib.Path, secret: pathlib.Path | None = None) -> Config:
    journal = Journal(signing_key_file=None if secret is None else str(secret))
    return Config(state_dir=str(state_dir), journal=journal, backends=(), models=(), tenants=())


def write_key(path: pathlib.Path) -> None:
    private = Ed25519PrivateKey.generate()
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_a_key_that_is_there_is_left_alone(tmp_path: pathlib.Path) -> None:
    Keys(tmp_path).ensure(time.time_ns())
    before = (tmp_path / "keys" / KEYS).read_bytes()
    KeyDuty(config(tmp_path)).look()
    assert (tmp_path / "keys" / KEYS).read_bytes() == before
    assert directories(tmp_path / "journal") == []


def test_a_private_half_of_ours_that_is_lost_is_replaced_and_told(tmp_path: pathlib.Path) -> None:
    Keys(tmp_path).ensure(time.time_ns())
    (private,) = (tmp_path / "keys").glob("*.pem")
    private.unlink()
    duty = KeyDuty(config(tmp_path))
    duty.look()
    old, new = Keys(tmp_path).load().keys
    assert (old.ended_because, new.ended_because) == ("rotated", None)
    (told,) = directories(tmp_path / "journal")
    events = [line.data["what"] for line, _, _ in told.records() if isinstance(line, Event)]
    assert events == ["rotated", "new"]
    duty.look()
    assert len(directories(tmp_path / "journal")) == 1


def test_an_operators_key_is_not_replaced(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret.pem"
    write_key(secret)
    Keys(tmp_path, secret).ensure(time.time_ns())
    duty = KeyDuty(config(tmp_path, secret))
    duty.look()
    write_key(secret)
    with pytest.raises(KeysError, match=r"is not the key .* that signs now"):
        duty.look()
    secret.unlink()
    with pytest.raises(KeysError, match=r"secret\.pem: No such file"):
        duty.look()


def test_a_list_of_keys_that_is_gone_is_not_begun_anew(tmp_path: pathlib.Path) -> None:
    """The keys of all journals before would be unknown."""
    Keys(tmp_path).ensure(time.time_ns())
    (tmp_path / "keys" / KEYS).unlink()
    with pytest.raises(KeysError, match=r"has no keys\.json any more: put it back"):
        KeyDuty(config(tmp_path)).look()
    assert not (tmp_path / "keys" / KEYS).exists()
