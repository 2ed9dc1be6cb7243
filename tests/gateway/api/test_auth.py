"""Keys: who is let in as whom, and what is said to those who are not."""

import hashlib
import os
import pathlib
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.auth import Keys, hash_of, key_id
from gateway.api.errors import ScopeMissing, UnknownKey
from gateway.api.new_keys import new_key
from gateway.commands.keys import KeyFileError, kept_key
from gateway.configuration.config import Key, Tenant

ACME, GLOBEX = new_key(), new_key()
KEYS = Keys(
    [
        Tenant(
            name="acme",
            projects=("chat", "batch"),
            tags={"cost_centre": "42"},
            keys=(Key(hash=hash_of(ACME), scopes=("inference", "operator")),),
        ),
        Tenant(name="globex", keys=(Key(hash=hash_of(GLOBEX)),)),
    ]
)


def test_a_key_is_its_tenant() -> None:
    found = KEYS.principal(f"Bearer {ACME}".encode())
    assert (found.tenant, found.project, found.tags) == ("acme", "chat", {"cost_centre": "42"})
    assert found.scopes == {"inference", "operator"}
    assert found.key_id == hashlib.sha256(ACME.encode()).hexdigest()[:12] == key_id(hash_of(ACME))
    assert KEYS.principal(f"Bearer {GLOBEX}".encode()).project is None


@pytest.mark.parametrize("form", ["bearer {}", "BEARER {}", "Bearer  {} ", " Bearer {}"])
def test_forms_of_the_header_that_clients_send(form: str) -> None:
    assert KEYS.principal(form.format(ACME).encode()).tenant == "acme"


@pytest.mark.parametrize(
    "header",
    [
        None, b"", b"Bearer", b"Bearer ", ACME.encode(), b"Basic " + ACME.encode(), b"Bearer " + ACME[:-1].encode(),
        b"Bearer " + ACME.upper().encode(), b"Bearer " + hash_of(ACME).encode(), b"Bearer \xff\x00",
    ],
)  # fmt: skip
def test_everything_else_is_unknown_and_not_repeated(header: bytes | None) -> None:
    with pytest.raises(UnknownKey) as caught:
        KEYS.principal(header)
    assert caught.value.status == 401
    assert caught.value.code == "invalid_api_key"
    assert ACME[3:20] not in caught.value.message


@pytest.mark.parametrize(
    ("authorization", "api_key", "tenant"),
    [
        (None, ACME, "acme"),  # as Anthropic's clients send it
        (None, f" {GLOBEX} ", "globex"),
        (f"Bearer {ACME}", ACME, "acme"),
        (f"Bearer {ACME}", f" {ACME}", "acme"),
    ],
)
def test_the_key_may_stand_in_a_header_of_its_own(
    authorization: str | None, api_key: str, tenant: str
) -> None:
    assert (
        KEYS.principal(authorization.encode() if authorization else None, api_key.encode()).tenant == tenant
    )


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (None, ""),
        (None, "wrong"),
        (None, f"Bearer {ACME}"),
        (f"Bearer {ACME}", GLOBEX),  # whose call would it be?
        (f"Bearer {ACME}", ""),
        ("Bearer wrong", ACME),
        ("Basic x", ACME),
    ],
)
def test_two_different_keys_are_none(authorization: str | None, api_key: str) -> None:
    with pytest.raises(UnknownKey) as caught:
        KEYS.principal(authorization.encode() if authorization else None, api_key.encode())
    assert not {ACME, GLOBEX} & set(caught.value.message.split())


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_no_bytes_break_it(header: bytes, api_key: bytes | None) -> None:
    with pytest.raises(UnknownKey):
        KEYS.principal(header, api_key)


def test_a_key_that_shares_only_the_id_is_unknown() -> None:
    digest = hashlib.sha256(ACME.encode()).hexdigest()
    forged = Keys([Tenant(name="acme", keys=(Key(hash=f"sha256:{digest[:12]}{'0' * 52}"),))])
    with pytest.raises(UnknownKey):
        forged.principal(f"Bearer {ACME}".encode())


def test_scopes() -> None:
    KEYS.principal(f"Bearer {ACME}".encode()).require("operator")
    with pytest.raises(ScopeMissing) as caught:
        KEYS.principal(f"Bearer {GLOBEX}".encode()).require("operator")
    assert caught.value.status == 403


def test_new_keys_hold_256_bits_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {3 + 52}
    assert all(key.startswith("wb-") for key in keys)


def test_the_key_file_is_the_owners_and_kept(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "state" / "api-key"
    key = kept_key(file)
    assert file.read_text() == key + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kept_key(file) == key
    assert [path.name for path in file.parent.iterdir()] == ["api-key"]


def test_of_two_that_make_the_file_at_once_both_get_one_key(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "api-key"
    real_link, theirs = os.link, new_key()

    def link_too_late(source: object, target: object) -> None:
        file.write_text(theirs + "\n")
        real_link(source, target)

    monkeypatch.setattr("os.link", link_too_late)
    assert kept_key(file) == theirs
    assert [path.name for path in tmp_path.iterdir()] == ["api-key"]


@pytest.mark.parametrize("text", ["", "sk-abc", "wb-short"])
def test_a_file_with_something_else_is_not_overwritten(tmp_path: pathlib.Path, text: str) -> None:
    file = tmp_path / "api-key"
    file.write_text(text)
    with pytest.raises(KeyFileError, match="holds no API key"):
        kept_key(file)
    assert file.read_text() == text
