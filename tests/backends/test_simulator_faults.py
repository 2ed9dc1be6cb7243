import msgspec
import pytest

from backends.simulator.faults import Fault, Faults, Kind


def test_a_fault_befalls_as_many_calls_as_it_says() -> None:
    faults = Faults()
    faults.add(Fault(kind=Kind.DIE, times=2))
    faults.add(Fault(kind=Kind.RESET, after_events=3))
    kinds = [fault and fault.kind for fault in (faults.next() for _ in range(4))]
    assert kinds == [Kind.DIE, Kind.DIE, Kind.RESET, None]


def test_cleared_faults_befall_nobody() -> None:
    faults = Faults()
    faults.add(Fault(kind=Kind.STALL, times=9))
    faults.clear()
    assert faults.next() is None


def test_before_the_head_unless_it_says_after_how_many_events() -> None:
    assert Fault(kind=Kind.DIE).before_head
    assert not Fault(kind=Kind.DIE, after_events=0).before_head


@pytest.mark.parametrize("kind", [Kind.SLOW_HEAD, Kind.BUSY_429, Kind.BUSY_503])
def test_what_puts_off_or_refuses_strikes_nothing(kind: Kind) -> None:
    assert not Fault(kind=kind).strikes
    assert not Fault(kind=kind).before_head


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"kind":"explode"}',
        b'{"kind":"die","after":1}',
        b'{"kind":"die","after_events":-1}',
        b'{"kind":"die","times":0}',
        b'{"kind":"slow_head","delay_ms":-1}',
        b'{"kind":"busy_429","retry_after_s":-1}',
    ],
)
def test_a_misspelt_fault_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Fault)
