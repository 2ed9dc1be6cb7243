"""Content held against its records: every alteration is found and named, every deletion is meant or is found."""

import hashlib
import pathlib
from collections.abc import Callable, Iterable

import pytest

from metering.archive.objects import ArchiveError, LocalObjects
from metering.capture import content, removal
from metering.capture.content import Altered, Contents, Gone, NotKept
from metering.capture.envelope import NotOpened, Opener
from metering.capture.frame import Header
from metering.capture.shelf import FINAL_NS, Shelf, Shelved, file_name, shelved
from metering.journal import events
from metering.record import CallRecord, Capture, Line
from metering.units import NS_PER_HOUR
from tests.support.journals import AT_NS, admitted, call

OPENER = Opener.new()
HOUR = AT_NS // NS_PER_HOUR
NAME = file_name(HOUR, "0" * 16)


class Place:
    """Calls of acme with their content in one file; each call's prompt and answer are its own."""

    def __init__(self, root: pathlib.Path, calls: int = 4) -> None:
        self.shelf = Shelf(root / "state")
        self.objects = LocalObjects(root / "archive")
        self.one = Shelved("acme", NAME)
        self.path = self.shelf.path(self.one)
        self.path.parent.mkdir(parents=True)
        self.records = [self._keep(f"w-{n}", b"prompt %d" % n, b"answer %d" % n) for n in range(calls)]

    def _keep(self, call_id: str, prompt: bytes, answer: bytes) -> CallRecord:
        header = Header(
            answer_bytes=len(answer), answer_kept_bytes=len(answer), call_id=call_id, key=OPENER.recipient.id,
            prompt_bytes=len(prompt), prompt_kept_bytes=len(prompt), tenant="acme",
        )  # fmt: skip
        data = OPENER.recipient.seal(header, prompt, answer)
        offset = self.path.stat().st_size if self.path.exists() else 0
        with self.path.open("ab") as file:
            file.write(data)
        capture = Capture(
            answer_bytes=len(answer), bytes=len(data), file=NAME, key=OPENER.recipient.id, offset=offset,
            prompt_bytes=len(prompt), sha256=hashlib.sha256(data).hexdigest(),
        )  # fmt: skip
        return made(call(call_id, capture=capture))

    def check(self, *more: Line, objects: bool = False) -> content.Checked:
        lines: list[Line] = [made(admitted("w-0")), *self.records, *more]
        return content.check(lambda: lines, Contents(self.shelf, self.objects if objects else None))

    def span(self, n: int) -> slice:
        capture = self.records[n].capture
        assert isinstance(capture, Capture)
        assert capture.offset is not None and capture.bytes is not None  # noqa: PT018
        return slice(capture.offset, capture.offset + capture.bytes)


def made(make: Callable[[int, str], Line]) -> Line:
    return make(1, "")


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def flip(place: Place, data: bytearray) -> Iterable[int]:
    at = place.span(1)
    data[at.stop - 3] ^= 1
    return [1]


def swap(place: Place, data: bytearray) -> Iterable[int]:
    one, other = place.span(1), place.span(2)
    data[one], data[other] = data[other], data[one]
    return [1, 2]


def delete_one(place: Place, data: bytearray) -> Iterable[int]:
    del data[place.span(1)]
    return [1, 2, 3]


def truncate(place: Place, data: bytearray) -> Iterable[int]:
    del data[place.span(3).stop - 1 :]
    return [3]


def zero(place: Place, data: bytearray) -> Iterable[int]:
    at = place.span(2)
    data[at] = bytes(at.stop - at.start)
    return [2]


@pytest.mark.parametrize("attack", [flip, swap, delete_one, truncate, zero])
def test_every_attack_is_found_by_the_calls_it_meets(place: Place, attack: Callable) -> None:
    assert place.check().wrong == []
    data = bytearray(place.path.read_bytes())
    hit = attack(place, data)
    place.path.write_bytes(data)
    found = place.check()
    assert [call_id for call_id, _ in found.wrong] == [f"w-{n}" for n in hit]
    assert found.kept == 4 - len(list(hit))


def test_one_that_is_written_anew_is_found(place: Place) -> None:
    """Everybody has the public key: the journal's digest is what holds it."""
    header = Header(
        answer_bytes=8, answer_kept_bytes=8, call_id="w-1", key=OPENER.recipient.id, prompt_bytes=8,
        prompt_kept_bytes=8, tenant="acme",
    )  # fmt: skip
    data = bytearray(place.path.read_bytes())
    data[place.span(1)] = OPENER.recipient.seal(header, b"prompt 1", b"ANSWER 1")
    place.path.write_bytes(data)
    ((call_id, reason),) = place.check().wrong
    assert call_id == "w-1"
    assert "not the bytes that its record has the digest of" in reason


def test_a_frame_under_the_record_of_another_call_is_found(place: Place) -> None:
    """Though its digest is right: whoever writes records may point one at another's content."""
    place.records[0] = made(call("w-0", capture=place.records[1].capture))
    place.records[1] = made(call("w-1", tenant="globex", capture=place.records[1].capture))
    (place.shelf.root / "globex").symlink_to(place.path.parent)
    wrong = dict(place.check().wrong)
    assert "says of itself that it is of w-1" in wrong["w-0"]
    assert "of acme" in wrong["w-1"]


@pytest.mark.parametrize(
    "file", ["../../journal/x", "x.frames", None, "2026-13-01T00-" + "0" * 16 + ".frames"]
)
def test_a_record_leads_out_of_nothing(place: Place, file: str | None) -> None:
    capture = Capture(bytes=1, file=file, key="k", offset=0, sha256="")
    with pytest.raises(Altered, match="names no file"):
        Contents(place.shelf, None).find(made(call("w-9", capture=capture)))


def test_a_digest_of_what_is_no_frame_is_no_content(place: Place) -> None:
    capture = Capture(bytes=2, file=NAME, key="k", offset=0, sha256=hashlib.sha256(b"WB").hexdigest())
    with pytest.raises(Altered, match="ends within its lengths"):
        Contents(place.shelf, None).find(made(call("w-9", capture=capture)))


def test_what_was_not_kept_is_told_apart_from_what_is_gone(place: Place) -> None:
    contents = Contents(place.shelf, None)
    with pytest.raises(NotKept, match="had no capture"):
        contents.find(made(call("w-9")))
    dropped = made(call("w-9", capture=Capture(dropped="disk_full", key="k")))
    with pytest.raises(NotKept, match="disk_full"):
        contents.find(dropped)
    assert place.check(dropped).dropped == 1
    place.path.unlink()
    with pytest.raises(Gone, match=r"is not here$"):
        contents.find(place.records[0])
    with pytest.raises(Gone, match="nor in the archive"):
        Contents(place.shelf, place.objects).find(place.records[0])


def test_only_a_deletion_that_was_told_explains_that_it_is_gone(place: Place) -> None:
    def deleted(tenant: str, until_ns: int) -> Line:
        happening = events.content_deleted(
            actor=None, where="local", tenant=tenant, reason="age", until_ns=until_ns, files=1
        )
        return made(happening.line(lambda: AT_NS))

    place.path.unlink()
    assert len(place.check().wrong) == 4
    assert len(place.check(deleted("globex", AT_NS + 1)).wrong) == 4
    assert len(place.check(deleted("acme", AT_NS - content.SLACK_NS)).wrong) == 4
    found = place.check(deleted("acme", AT_NS + 1))
    assert (found.deleted, found.wrong) == (4, [])


def test_of_one_tenant_alone_and_what_does_not_open(place: Place) -> None:
    lines = place.records
    assert content.check(lambda: lines, Contents(place.shelf, None), tenant="globex").kept == 0

    def see(_record: CallRecord, _frame: object) -> None:
        raise Altered("it does not open")

    found = content.check(lambda: lines, Contents(place.shelf, None), tenant="acme", see=see)
    assert len(found.wrong) == 4
    with pytest.raises(NotOpened):
        Opener.new().open(Contents(place.shelf, None).find(place.records[0]))


def test_it_is_moved_to_the_archive_and_read_there(place: Place) -> None:
    removal.archive(place.shelf, place.objects, place.one)
    assert not place.path.exists()
    assert removal.archived(place.objects) == removal.archived(place.objects, "acme") == [place.one]
    assert removal.archived(place.objects, "globex") == []
    assert place.check(objects=True).kept == 4
    assert len(place.check().wrong) == 4
    removal.delete_archived(place.objects, [place.one])
    assert removal.archived(place.objects) == []


def test_a_move_that_was_cut_short_is_gone_on_with_and_other_bytes_are_left(place: Place) -> None:
    data = place.path.read_bytes()
    place.objects.put_new("content/acme/" + NAME, data)
    place.objects.put_new("content/acme/else", b"")
    removal.archive(place.shelf, place.objects, place.one)
    place.path.write_bytes(data + b"more")
    with pytest.raises(ArchiveError, match="with other bytes"):
        removal.archive(place.shelf, place.objects, place.one)
    assert place.path.exists()


def test_what_is_old_by_its_tenants_days_is_deleted(place: Place) -> None:
    until_ns = place.one.until_ns
    assert removal.old(place.shelf.files(), lambda _: until_ns + FINAL_NS) == {}
    old = removal.old(place.shelf.files(), lambda tenant: until_ns + FINAL_NS + (tenant == "acme"))
    assert old == {"acme": [place.one]}
    removal.delete_local(place.shelf, old["acme"])
    removal.delete_local(place.shelf, old["acme"])
    assert list(place.shelf.files()) == []


def test_a_file_is_final_two_minutes_after_its_hour_and_its_last_write(place: Place) -> None:
    touched_ns = place.path.stat().st_mtime_ns
    assert not place.shelf.is_final(place.one, touched_ns + FINAL_NS - 1)
    assert place.shelf.is_final(place.one, touched_ns + FINAL_NS)
    assert place.one.until_ns == (AT_NS // NS_PER_HOUR + 1) * NS_PER_HOUR


@pytest.mark.parametrize("tenant", ["a/b", "..", ".hidden"])
def test_no_name_is_a_path(tenant: str) -> None:
    assert shelved(tenant, NAME) is None
    assert shelved("acme", NAME) is not None
