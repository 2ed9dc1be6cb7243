"""The compiled directory: file and entries together, one change at a time, the same as all at once."""

import random
from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.auth import Barred, Keys, hash_of, key_id
from gateway.api.errors import DirectoryStale, KeyBarred, UnknownKey
from gateway.configuration.config import Key, Tenant
from gateway.directory import entries
from gateway.directory.directory import Directory
from gateway.directory.entries import KeySettings, TenantSettings
from metering.ledger.directory import Copy
from metering.record import Entry

FILE = (Tenant(name="acme", projects=("web",), keys=(Key(hash=hash_of("wb-file")),)),)
NOW_NS = 1_000 * 10**9


def tenant(name: str, version: int = 1, **settings: object) -> Entry:
    made = entries.entry("tenant", name, TenantSettings(name=name, **settings), None, 1)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, version=version)


def key(
    word: str, owner: str = "globex", version: int = 1, *, revoked: bool = False, **settings: object
) -> Entry:
    said = KeySettings(hash=hash_of(word), tenant=owner, **settings)  # type: ignore[arg-type]
    made = entries.entry("key", key_id(said.hash), said, None, 1)
    return msgspec.structs.replace(made, version=version, revoked=revoked)


def compiled(*taken: Entry) -> Directory:
    found = Directory(FILE, Keys(), NOW_NS)
    found.take(taken, NOW_NS)
    return found


def opens(directory: Directory, word: str) -> str | None:
    """Whose calls this key makes; None: it opens nothing, "stale": nothing just now."""
    try:
        principal = directory.keys.principal(f"Bearer {word}".encode())
        if principal.guard is not None:
            principal.guard.check("chat", lambda: None)
    except (UnknownKey, KeyBarred):
        return None
    except DirectoryStale:
        return "stale"
    return principal.tenant


def test_both_are_known() -> None:
    found = compiled(tenant("globex"), key("wb-k"), key("wb-of-acme", "acme", project="web"))
    assert [opens(found, word) for word in ("wb-file", "wb-k", "wb-of-acme")] == ["acme", "globex", "acme"]
    assert found.names() == ["acme", "globex"]
    assert [(one.name, len(one.keys)) for one in found.tenants()] == [("acme", 2), ("globex", 1)]
    assert [one for one, _ in found.known_keys("globex")] == [key_id(hash_of("wb-k"))]
    assert len(found.known_keys()) == 3
    assert (found.in_file("acme"), found.in_file("globex"), found.tenant("nobody")) == (True, False, None)


def test_of_one_name_the_files_counts() -> None:
    found = compiled(
        tenant("acme", disabled=True, projects=("other",)), key("wb-file", "globex", disabled=True)
    )
    assert opens(found, "wb-file") == "acme"
    acme = found.tenant("acme")
    assert acme is not None
    assert acme.projects == ("web",)
    assert found.twice() == ["acme"]


def test_a_key_waits_for_its_tenant() -> None:
    found = compiled(key("wb-k"))
    assert opens(found, "wb-k") is None
    found.take([tenant("globex")], NOW_NS)
    assert opens(found, "wb-k") == "globex"


def test_what_cannot_be_read_opens_nothing() -> None:
    found = compiled(tenant("globex"), key("wb-k"))
    for data in ("{}", '{"name":"globex","from_the_future":1}', '{"name":"other"}'):
        found.take([msgspec.structs.replace(tenant("globex"), data=msgspec.Raw(data.encode()))], NOW_NS)
        assert opens(found, "wb-k") is None
    found.take([tenant("globex"), msgspec.structs.replace(key("wb-k"), name="0" * 12)], NOW_NS)
    assert found.known_key("0" * 12) is None
    bad = msgspec.structs.replace(key("wb-k"), data=key("wb-k", expires="soon").data)
    found.take([bad], NOW_NS)
    assert opens(found, "wb-k") is None


def test_reasons_to_open_nothing() -> None:
    found = compiled(tenant("globex"))
    for reason, entry in (
        (None, key("wb-k")),
        (Barred.DISABLED, key("wb-k", disabled=True)),
        (Barred.EXPIRED, key("wb-k", expires="1970-01-01T00:16:40Z")),
        (None, key("wb-k", expires="1970-01-01T00:16:41Z")),
        (Barred.REVOKED, key("wb-k", revoked=True)),
    ):
        found.take([entry], NOW_NS)
        known = found.known_key(entry.name)
        assert known is not None
        assert found.barred(known, NOW_NS) is reason
        assert opens(found, "wb-k") == ("globex" if reason is None else None)
    found.take([key("wb-k"), tenant("globex", disabled=True)], NOW_NS)
    assert opens(found, "wb-k") is None


def test_a_key_ends_when_its_time_comes() -> None:
    found = compiled(tenant("globex"), key("wb-k", expires="1970-01-01T00:20:00Z"), key("wb-l"))
    found.pass_time(1_200 * 10**9 - 1)
    assert opens(found, "wb-k") == "globex"
    found.pass_time(1_200 * 10**9)
    assert (opens(found, "wb-k"), opens(found, "wb-l")) == (None, "globex")


def test_what_may_have_been_revoked_elsewhere_waits() -> None:
    found = compiled(tenant("globex"), key("wb-k"))
    found.set_stale(True, NOW_NS)
    found.set_stale(True, NOW_NS)
    assert (opens(found, "wb-k"), opens(found, "wb-file")) == ("stale", "acme")
    found.set_stale(False, NOW_NS)
    assert opens(found, "wb-k") == "globex"


def test_who_wants_to_know_is_told_which_tenants_changed() -> None:
    found, told = compiled(tenant("globex"), tenant("initech"), key("wb-k")), []

    def changed(names: Collection[str]) -> None:
        told.append(sorted(names))

    found.on_change.append(changed)
    found.take([key("wb-k", "initech", version=2)], NOW_NS)  # it moves
    found.take([tenant("globex", version=2)], NOW_NS)
    found.take([key("wb-file")], NOW_NS)  # the file's, so nothing
    assert told == [["globex", "initech"], ["globex"]]


CHANGES = st.lists(
    st.one_of(
        st.builds(tenant, st.sampled_from(["globex", "initech", "acme"]), st.integers(1, 4), disabled=st.booleans()),
        st.builds(
            key, st.sampled_from(["wb-1", "wb-2", "wb-file"]), st.sampled_from(["globex", "initech", "acme"]),
            st.integers(1, 4), revoked=st.booleans(), disabled=st.booleans(),
            expires=st.sampled_from([None, "1970-01-01T00:10:00Z", "1970-01-01T01:00:00Z"]),
        ),
    ),
    max_size=12,
)  # fmt: skip


@given(CHANGES, st.randoms())
def test_change_by_change_is_as_all_at_once(changes: list[Entry], rng: random.Random) -> None:
    copy, slowly = Copy(), Directory(FILE, Keys(), NOW_NS)
    for entry in changes:
        slowly.take(copy.take([entry]), NOW_NS)
        if rng.random() < 0.3:
            slowly.set_stale(rng.random() < 0.5, NOW_NS)
            slowly.pass_time(NOW_NS)
    slowly.set_stale(False, NOW_NS)
    at_once = compiled(*copy.entries("tenant"), *copy.entries("key"))
    words = ("wb-1", "wb-2", "wb-file")
    assert [opens(slowly, word) for word in words] == [opens(at_once, word) for word in words]
    assert {one.name: len(one.keys) for one in slowly.tenants()} == {
        one.name: len(one.keys) for one in at_once.tenants()
    }
    assert opens(slowly, "wb-file") == "acme"
    for word in words[:2]:
        entry = copy.get("key", key_id(hash_of(word)))
        if entry is not None and entry.revoked:
            assert opens(slowly, word) is None


def test_an_entry_never_goes_back_in_time() -> None:
    first = entries.entry("tenant", "x", TenantSettings(name="x"), None, 100)
    second = entries.entry(
        "tenant", "x", TenantSettings(name="x"), msgspec.structs.replace(first, revoked=True), 50
    )
    assert (second.at_ns, second.version, second.revoked) == (100, 2, True)


@pytest.mark.parametrize("type_", [TenantSettings, KeySettings])
def test_what_is_no_settings_is_none(type_: type) -> None:
    assert entries.read(msgspec.structs.replace(tenant("x"), data=msgspec.Raw(b"{")), type_) is None
