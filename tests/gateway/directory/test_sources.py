"""Where a request comes from: only what a trusted proxy has seen is believed."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.directory.sources import Origin, Sources

PROXIES = ("10.0.0.0/8", "fd00::/8", "192.0.2.7")
FORWARDED = b"x-forwarded-for"


def of(peer: str | None, *forwarded: str, proxies: tuple[str, ...] = PROXIES) -> str | None:
    headers = [(b"x-other", b"1.1.1.1"), *((FORWARDED, text.encode()) for text in forwarded)]
    found = Sources(proxies).of(Origin(peer, headers))
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("203.0.113.9", (), "203.0.113.9"),
        ("203.0.113.9", ("10.0.0.1",), "203.0.113.9"),  # no proxy of ours says so
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("203.0.113.9",), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.1, 203.0.113.9",), "203.0.113.9"),  # the first is the client's own word
        ("10.0.0.1", ("203.0.113.9, 192.0.2.7, 10.9.9.9",), "203.0.113.9"),
        ("10.0.0.1", ("198.51.100.1", "203.0.113.9"), "203.0.113.9"),  # two headers are one list
        ("10.0.0.1", ("203.0.113.9", "192.0.2.7"), "203.0.113.9"),
        ("10.0.0.1", ("10.0.0.2, 10.0.0.3",), "10.0.0.2"),  # proxies all the way
        ("10.0.0.1", ("unknown",), None),
        ("10.0.0.1", ("junk, 203.0.113.9",), "203.0.113.9"),
        ("10.0.0.1", ("203.0.113.9, ",), None),
        ("10.0.0.1", ("203.0.113.9:4711",), "203.0.113.9"),
        ("10.0.0.1", ("[2001:db8::1]:4711",), "2001:db8::1"),
        ("fd00::1", ("2001:db8::1",), "2001:db8::1"),
        ("::ffff:10.0.0.1", ("203.0.113.9",), "203.0.113.9"),  # IPv4, as a socket of IPv6 has it
        (None, ("203.0.113.9",), None),
        ("", (), None),
    ],
)
def test_the_list_is_read_from_its_end(
    peer: str | None, forwarded: tuple[str, ...], source: str | None
) -> None:
    assert of(peer, *forwarded) == source


@given(st.lists(st.text(max_size=20), max_size=4), st.ip_addresses().map(str))
def test_whatever_a_client_writes_it_is_where_it_is(words: list[str], client: str) -> None:
    address = ipaddress.ip_address(client)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return
    if any(address in ipaddress.ip_network(proxy) for proxy in PROXIES):
        return
    lines = [*(word.encode("utf-8", "ignore").decode("latin-1") for word in words), client]
    headers = [(FORWARDED, line.encode("latin-1")) for line in lines]
    assert str(Sources(PROXIES).of(Origin("10.0.0.1", headers))) == str(address)


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert of("127.0.0.1", "203.0.113.9", proxies=()) == "127.0.0.1"
