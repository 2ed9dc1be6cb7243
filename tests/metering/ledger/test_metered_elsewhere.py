"""Several gateways before one server: what one has metered is no bypass to the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.ledger.bypass import LOOKS, Bypass
from metering.ledger.metered_elsewhere import (
    FORGOTTEN_LOOKS,
    SILENT_LOOKS,
    Elsewhere,
    Statement,
    address_of,
    parse,
)


def statement(beat: int, tokens: int, gateway: str = "g2") -> Statement:
    return Statement(gateway, "b1", "0a1b2c3d", beat, tokens)


def test_a_statement_is_what_was_stated() -> None:
    one = statement(3, 500)
    assert (one.field, one.value) == ("g2|b1|0a1b2c3d", "3:500")
    assert parse({one.field: one.value}) == [one]
    assert len(address_of("http://10.0.0.1:8000")) == 8
    assert address_of("http://a") != address_of("http://b")


@pytest.mark.parametrize(
    ("field", "value"),
    [("", ""), ("g|b", "1:2"), ("g|b|a", "1"), ("g|b|a", "x:1"), ("g|b|a", "1:-1"), ("g|b|", "1:1")],
)
def test_what_is_none_is_left_out(field: str, value: str) -> None:
    assert parse({field: value}) == []


def test_it_adds_up_and_never_falls() -> None:
    elsewhere = Elsewhere()
    assert elsewhere.take([statement(1, 100), statement(1, 7, "g3")]) == []
    assert elsewhere.tokens == 107
    elsewhere.take([statement(2, 150)])
    assert elsewhere.tokens == 157, "what the store has lost is still known"
    elsewhere.take([statement(3, 20)])
    assert elsewhere.tokens == 177, "it has begun anew"


def test_who_is_silent_is_waited_for_and_then_gone() -> None:
    elsewhere = Elsewhere()
    elsewhere.take([statement(1, 100)])
    for _ in range(SILENT_LOOKS - 1):
        elsewhere.take([statement(1, 100)])
    assert not elsewhere.is_silent
    elsewhere.take([])
    assert elsewhere.is_silent
    elsewhere.take([statement(2, 110)])
    assert (elsewhere.is_silent, elsewhere.tokens) == (False, 110)
    dropped = [elsewhere.take([statement(2, 110)]) for _ in range(FORGOTTEN_LOOKS)]
    assert [one for one in dropped if one] == [["g2|b1|0a1b2c3d"]]
    assert (elsewhere.is_silent, elsewhere.tokens, elsewhere.known) == (False, 110, {})


class Server:
    """A server that two gateways and somebody else use, and the two gateways' looks at it."""

    def __init__(self) -> None:
        self.counter = 0
        self.metered = [0, 0]
        self.beats = [0, 0]
        self.stated: dict[int, Statement] = {}
        self.bypasses = [Bypass(), Bypass()]
        self.elsewhere = [Elsewhere(), Elsewhere()]
        self.look(0)
        self.look(1)

    def call(self, gateway: int, tokens: int) -> None:
        self.counter += tokens
        self.metered[gateway] += tokens

    def look(self, gateway: int, *, exchange: bool = True) -> None:
        other = 1 - gateway
        elsewhere, bypass = self.elsewhere[gateway], self.bypasses[gateway]
        self.beats[gateway] += 1
        if exchange:
            elsewhere.take([self.stated[other]] if other in self.stated else [])
        self.stated[gateway] = statement(self.beats[gateway], self.metered[gateway], f"g{gateway}")
        if elsewhere.is_silent:
            bypass.forgive()
        bypass.look(self.counter, self.metered[gateway] + elsewhere.tokens)

    @property
    def unmetered(self) -> list[int | None]:
        return [bypass.unmetered for bypass in self.bypasses]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99), st.integers(0, 9), st.booleans()), max_size=80)
)
def test_calls_through_either_are_metered_and_a_bypass_is_seen_by_both(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    server, passed = Server(), 0
    for gateway, tokens, past, looks in steps:
        server.call(gateway, tokens)
        server.counter += past
        passed += past
        if looks:
            for each in (gateway, 1 - gateway):
                server.look(each)
    for _ in range(LOOKS + 1):
        server.look(0)
        server.look(1)
    assert server.unmetered == [passed, passed]


def test_a_gateway_that_dies_with_what_it_has_not_stated_raises_no_alarm() -> None:
    server = Server()
    server.call(1, 50)
    server.look(1)
    server.call(1, 1_000)  # and it is gone, with its disk
    for _ in range(2 * LOOKS):
        server.look(0)
        assert server.unmetered[0] == 0


def test_the_law_sees_a_gateway_that_hears_of_no_other() -> None:
    """The mutant: as it was."""
    server = Server()
    server.call(1, 1_000)
    for _ in range(LOOKS):
        server.look(1)
        server.look(0, exchange=False)
    assert server.unmetered[0] == 1_000
