import base64
import hashlib
import hmac
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.salts import KEY_BYTES, Salts

KEY = bytes(range(KEY_BYTES))
TENANTS = ("acme", "acme-2", "zeta")


def test_a_salt_is_what_it_is_said_to_be() -> None:
    """RFC 2104 by hand: whoever has the key can make it again."""
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in KEY.ljust(64, b"\0")) + b"acme\0mine").digest()
    outer = hashlib.sha256(bytes(b ^ 0x5C for b in KEY.ljust(64, b"\0")) + inner).digest()
    assert Salts(KEY, TENANTS).of("acme", "mine") == b'"' + base64.urlsafe_b64encode(outer[:24]) + b'"'


names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True)
salts = st.none() | st.text(max_size=5)


@given(st.lists(st.tuples(names, salts), min_size=2, max_size=8, unique=True))
def test_no_two_share_one(calls: list[tuple[str, str | None]]) -> None:
    made = Salts(KEY, TENANTS)
    assert len({made.of(tenant, given) for tenant, given in calls}) == len(calls)


def test_the_same_is_always_the_same() -> None:
    one, other = Salts(KEY, TENANTS), Salts(KEY, TENANTS)
    for tenant, own in itertools.product(TENANTS, (None, "", "mine")):
        assert one.of(tenant, own) == other.of(tenant, own) == one.of(tenant, own)
    assert one.of("acme", None) != Salts(bytes(KEY_BYTES), TENANTS).of("acme", None)


@pytest.mark.parametrize("tenants", [(), ("acme",)])
def test_one_tenant_alone_is_left_as_it_is(tenants: tuple[str, ...]) -> None:
    made = Salts(KEY, tenants)
    assert (made.of("acme", None), made.of("acme", "mine")) == (None, None)
    made.use(("acme", "zeta"))
    assert (
        made.of("acme", None)
        == b'"' + base64.urlsafe_b64encode(hmac.digest(KEY, b"acme", hashlib.sha256)[:24]) + b'"'
    )
