"""The clerk's verification: when it is done, and what is kept of it."""

import json
import pathlib
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.duties.verify_duty import INTERVAL_NS, RESULT, WANTED, VerifyDuty
from metering.archive.archive import Archive
from metering.archive.objects import ArchiveUnavailable, LocalObjects
from metering.archive.trimming import Trimmer
from metering.audit.checkpoint import Signer
from metering.audit.keys import Keys
from metering.audit.notary import SigningKey
from metering.audit.verify import VerifyError
from metering.journal import event_journal, events
from metering.journal.journal import Directory
from tests.support import signed
from tests.support.archives import Place, make_facts, seal_all
from tests.support.journals import WRITER

TOLD = events.forgotten(actor="cli:ann", tenant="acme", key="01234567")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = time.time_ns()

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def result(state_dir: pathlib.Path) -> dict:
    return json.loads((state_dir / RESULT).read_bytes())


def run(duty: VerifyDuty) -> None:
    duty.verify_if_due()
    duty.wait()


def tell(state_dir: pathlib.Path) -> pathlib.Path:
    key = Keys(state_dir).ensure(time.time_ns())
    writer = event_journal.tell(state_dir / "journal", "audit forget", [TOLD], key)
    return state_dir / "journal" / writer


def test_it_is_done_once_a_day_and_when_somebody_asks(tmp_path: pathlib.Path) -> None:
    clock = Clock()
    duty = VerifyDuty(tmp_path, clock)
    run(duty)
    assert not (tmp_path / RESULT).exists()  # there is nothing yet
    tell(tmp_path)
    run(duty)
    first = result(tmp_path)
    assert (first["verdict"], first["journals"], first["lines"], first["live"]) == ("whole", 1, 3, 0)
    tell(tmp_path)
    run(duty)
    run(VerifyDuty(tmp_path, clock))
    assert result(tmp_path) == first
    clock.now_ns += INTERVAL_NS
    run(duty)
    assert result(tmp_path)["journals"] == 2
    tell(tmp_path)
    (tmp_path / WANTED).touch()
    run(duty)
    assert result(tmp_path)["journals"] == 3
    assert not (tmp_path / WANTED).exists()


def test_a_clock_that_was_set_back_does_not_stop_it(tmp_path: pathlib.Path) -> None:
    clock = Clock()
    tell(tmp_path)
    run(VerifyDuty(tmp_path, clock))
    first = result(tmp_path)
    clock.now_ns -= INTERVAL_NS
    run(VerifyDuty(tmp_path, clock))
    assert result(tmp_path)["at_ns"] < first["at_ns"]


def test_what_it_finds_is_kept_with_its_place(tmp_path: pathlib.Path) -> None:
    path = tell(tmp_path)
    (segment,) = path.glob("0*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'"tenant":"acme"', b'"tenant":"acne"'))
    run(VerifyDuty(tmp_path))
    found = result(tmp_path)
    assert found["verdict"] == "tampered"
    assert any(finding["file"] == str(segment) for finding in found["findings"])


def test_what_went_wrong_is_raised_at_the_next_round(tmp_path: pathlib.Path) -> None:
    tell(tmp_path)
    (tmp_path / "keys" / "keys.json").write_text("none")
    duty = VerifyDuty(tmp_path)
    run(duty)
    with pytest.raises(VerifyError):
        duty.verify_if_due()


def test_the_key_that_counts_is_the_one_beside_the_journals(tmp_path: pathlib.Path) -> None:
    stranger = Signer("weighbridge-journal", Ed25519PrivateKey.generate())
    Keys(tmp_path).ensure(time.time_ns())
    event_journal.tell(tmp_path / "journal", "audit forget", [TOLD], SigningKey(stranger, 0))
    run(VerifyDuty(tmp_path))
    assert result(tmp_path)["verdict"] == "tampered"


class Away(LocalObjects):
    """An archive that is not to be reached."""

    def list(self, prefix: str) -> list:
        raise ArchiveUnavailable(f"{prefix}: no connection")


def trimmed(state_dir: pathlib.Path) -> Archive:
    """A journal whose front is in this archive alone."""
    signed.closed(state_dir, per_segment=4)
    signed.write_keys(state_dir)
    place = Place(state_dir)
    directory = Directory(place.journals / WRITER)
    seal_all(directory)
    make_facts(place.maker, directory)
    archiver = place.archiver()
    archiver.archive(directory)
    Trimmer(place.archive, archiver, place.maker).trim([directory], 1 << 60, {WRITER})
    return place.archive


def test_what_was_trimmed_here_is_read_in_the_archive(tmp_path: pathlib.Path) -> None:
    archive = trimmed(tmp_path)
    run(VerifyDuty(tmp_path, archive=archive))
    found = result(tmp_path)
    assert (found["verdict"], found["findings"]) == ("whole", [])
    assert found["archived"]["lines"] == Directory(tmp_path / "journal" / WRITER).starts_after
    assert (found["archived"]["fronts"], found["archived"]["unread"]) == (1, "")
    assert found["archived"]["oldest_ns"] is not None


def test_what_was_altered_in_the_archive_is_found(tmp_path: pathlib.Path) -> None:
    archive = trimmed(tmp_path)
    (tmp_path / "archive" / "journal" / WRITER / "0000000000000001.jsonl.zst").write_bytes(b"")
    run(VerifyDuty(tmp_path, archive=archive))
    found = result(tmp_path)
    assert (found["verdict"], [one["what"] for one in found["findings"]]) == ("tampered", ["archive_differs"])


def test_an_archive_that_is_away_is_said_and_the_rest_is_verified(tmp_path: pathlib.Path) -> None:
    trimmed(tmp_path)
    run(VerifyDuty(tmp_path, archive=Archive(Away(tmp_path / "archive"))))
    found = result(tmp_path)
    assert (found["verdict"], found["findings"]) == ("whole", [])
    assert "no connection" in found["archived"]["unread"]
    assert found["archived"]["oldest_ns"] is None


def test_without_an_archive_a_front_is_missing(tmp_path: pathlib.Path) -> None:
    trimmed(tmp_path)
    run(VerifyDuty(tmp_path))
    found = result(tmp_path)
    assert (found["verdict"], [one["what"] for one in found["findings"]]) == ("incomplete", ["front_missing"])
    assert found["archived"] is None
