"""Who is let in: good keys always, bound ones where they belong, and unknown ones told so only so often."""

import pytest

from gateway.api.auth import Barred, Guard, Keys, Principal, hash_of, principal_of
from gateway.api.errors import DirectoryStale, KeyBarred, OutOfBounds, TooManyAttempts, UnknownKey
from gateway.configuration.config import Key, Tenant
from gateway.directory.attempts import Attempts
from gateway.directory.entrance import Entrance
from gateway.directory.sources import Origin, Sources

KEY = Key(hash=hash_of("wb-k"))
ACME = Tenant(name="acme", projects=("web", "batch"), keys=(KEY,))


def entrance(key: Key = KEY, barred: Barred | None = None, per_minute: int = 3) -> Entrance:
    keys = Keys()
    keys.put(key.hash, principal_of(ACME, key, barred))
    return Entrance(keys, Attempts(per_minute), Sources(()), lambda: 0)


def origin(peer: str | None = "203.0.113.1") -> Origin:
    return Origin(peer, ())


def enter(at: Entrance, endpoint: str | None = "chat", peer: str | None = "203.0.113.1") -> Principal:
    principal = at.known(b"Bearer wb-k", None, lambda: origin(peer))
    at.check(principal, endpoint, lambda: origin(peer))
    return principal


def test_unknown_keys_of_an_address_are_told_so_only_so_often_and_good_ones_are_let_in() -> None:
    at = entrance()
    for _ in range(3):
        with pytest.raises(UnknownKey):
            at.known(b"Bearer wb-guess", None, origin)
    with pytest.raises(TooManyAttempts) as caught:
        at.known(b"Bearer wb-guess", None, origin)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (
        429,
        "rate_limit_exceeded",
        20,
    )
    assert enter(at).tenant == "acme"  # the same address: nobody locks out his neighbour
    with pytest.raises(UnknownKey):
        at.known(b"Bearer wb-guess", None, lambda: origin("203.0.113.2"))
    with pytest.raises(UnknownKey):
        at.known(None, None, origin)  # no key is no attempt


@pytest.mark.parametrize("barred", list(Barred))
def test_a_barred_key_is_known_and_opens_nothing(barred: Barred) -> None:
    at = entrance(barred=barred, per_minute=1)
    for _ in range(3):  # who has the key guesses nothing
        with pytest.raises(DirectoryStale if barred is Barred.STALE else KeyBarred) as caught:
            enter(at)
    assert caught.value.message == barred.value


def test_a_key_is_for_its_endpoints_and_networks() -> None:
    at = entrance(Key(hash=KEY.hash, endpoints=("chat",), networks=("203.0.113.0/24", "2001:db8::/32")))
    assert enter(at).key_id == enter(at, None).key_id
    assert enter(at, peer="2001:db8::7").tenant == "acme"
    for endpoint, peer in (
        ("embeddings", "203.0.113.1"),
        ("chat", "198.51.100.1"),
        ("chat", None),
        (None, None),
    ):
        with pytest.raises(OutOfBounds) as caught:
            enter(at, endpoint, peer)
        assert caught.value.status == 403


def test_what_is_not_bound_is_not_looked_at() -> None:
    at = entrance()
    principal = enter(at)
    assert (principal.guard, principal.models, principal.project) == (None, None, "web")
    assert principal.may_ask("anything")
    Guard().check("chat", pytest.fail)


def test_a_key_has_its_own_project_and_models() -> None:
    principal = principal_of(ACME, Key(hash=KEY.hash, project="batch", models=("m1",)))
    assert (principal.project, principal.may_ask("m1"), principal.may_ask("m2")) == ("batch", True, False)


def test_keys_change_at_any_time() -> None:
    keys = Keys([ACME])
    first = keys.principal(b"Bearer wb-k")
    assert keys.principal(b"Bearer wb-k") is first
    keys.put(KEY.hash, principal_of(ACME, Key(hash=KEY.hash, scopes=("auditor",))))
    assert keys.principal(b"Bearer wb-k").scopes == {"auditor"}  # not what was found before
    assert len(keys) == 1
    keys.drop(first.key_id)
    keys.drop(first.key_id)
    with pytest.raises(UnknownKey):
        keys.principal(b"Bearer wb-k")
