"""What hours are closed from: here or in the archive, with facts or without, live or ended: each segment once."""

import pathlib
import shutil

import pytest

from metering.archive.manifest import Manifest
from metering.archive.objects import LocalObjects
from metering.archive.trimming import Trimmer
from metering.cost.close_row import CloseRow
from metering.cost.close_sources import Sources
from metering.journal.journal import Directory, salvage_dead
from metering.record import Expected, PriceBasis
from metering.usage import Usage, UsageSource
from tests.support.archives import Place, make_facts, seal_all
from tests.support.fleet import AT_NS, HOUR, MINUTE_NS, NS_PER_HOUR, Site, busy, registration
from tests.support.journals import Make, admitted, start, stop, tick, write_directory

HOURS = range(HOUR, HOUR + 1)
END_NS = AT_NS + NS_PER_HOUR
LATE_NS = END_NS + 20 * MINUTE_NS
A, B = ("w" + letter * 16 for letter in "ab")


def lines(*, tenant: str = "acme") -> list[Make]:
    return [
        registration(AT_NS),
        *busy("w-1", AT_NS, 10 * MINUTE_NS, tenant=tenant),
        tick(at_ns=AT_NS + 11 * MINUTE_NS),
        *busy("w-2", AT_NS + 20 * MINUTE_NS, 10 * MINUTE_NS, tenant=tenant),
        tick(at_ns=END_NS),
        *busy("w-3", END_NS, 10 * MINUTE_NS, tenant=tenant),
    ]


def calls(site: Site, now_ns: int = LATE_NS) -> dict[str | None, int]:
    """Calls of each tenant in the hour, after it was closed."""
    site.close(now_ns, HOURS)
    found: dict[str | None, int] = {}
    for row in rows(site):
        if row.calls:
            found[row.tenant] = found.get(row.tenant, 0) + row.calls
    return found


def rows(site: Site) -> list[CloseRow]:
    return list(site.closes.rows(site.closes.hours(HOURS)))


def archived(root: pathlib.Path, objects: LocalObjects, makes: list[Make], writer: str) -> Place:
    """Another gateway's state directory; its journal is in the archive as far as it is sealed."""
    place = Place(root, objects)
    directory = place.of([start(writer=writer), *makes], writer=writer, per_segment=4)
    place.archiver().archive(directory)
    return place


@pytest.fixture
def objects(tmp_path: pathlib.Path) -> LocalObjects:
    return LocalObjects(tmp_path / "archive")


@pytest.mark.parametrize("per_segment", [2, 3, 100])
def test_segments_with_facts_and_without_them_count_once(tmp_path: pathlib.Path, per_segment: int) -> None:
    """The first ones are sealed and have facts; the last one grows."""
    site = Site(tmp_path)
    place = Place(tmp_path)
    place.of([start(writer=A), *lines()], writer=A, per_segment=per_segment)
    assert calls(site) == {"acme": 2}
    assert sum(row.micro_hours for row in rows(site)) == 1_000_000


def test_what_the_clerk_makes_meanwhile_counts_once(tmp_path: pathlib.Path) -> None:
    """Between the look at who was paid for and the reading of calls, all of it gets its facts."""
    place = Place(tmp_path)
    makes = [start(writer=A), *lines(), stop(at_ns=END_NS + 1)]
    directory = Directory(write_directory(place.journals, makes, writer=A, per_segment=3))
    seal_all(directory)
    sources = Sources(tmp_path, None, tmp_path / "work", HOURS)
    assert [told.writer for told in sources.told()] == [A]
    make_facts(place.maker, directory)
    names = [path.name for path in sources.files(HOURS)]
    assert names
    assert len(names) == len(set(names))


def test_who_was_paid_for_is_told_without_facts_of_calls(tmp_path: pathlib.Path) -> None:
    """Most runs close nothing: they read a journal's few lines about hours and no more."""
    site = Site(tmp_path)
    site.journal([*lines(), registration(END_NS + MINUTE_NS)], writer=A)
    sources = Sources(tmp_path, None, tmp_path / "work", HOURS)
    assert [one.line.at_ns for one in sources.told()] == [AT_NS, END_NS + MINUTE_NS]
    assert not list((tmp_path / "work").rglob("*.parquet"))


def test_journals_of_the_archive_count(tmp_path: pathlib.Path, objects: LocalObjects) -> None:
    archived(tmp_path / "b", objects, [*lines(tenant="globex"), stop(at_ns=END_NS + 1)], B)
    site = Site(tmp_path / "a", objects)
    site.journal(lines(), writer=A)
    assert calls(site) == {"acme": 2, "globex": 2}
    (manifest,) = site.closes.hours(HOURS)
    assert [(one.writer, one.complete) for one in manifest.writers] == [(A, "tick"), (B, "end")]
    assert sum(row.micro_hours for row in rows(site)) == 1_000_000  # both tell of one instance


def test_a_copy_here_of_what_is_in_the_archive_counts_once(
    tmp_path: pathlib.Path, objects: LocalObjects
) -> None:
    archived(tmp_path / "b", objects, [*lines(), stop(at_ns=END_NS + 1)], B)
    shutil.copytree(tmp_path / "b" / "journal" / B, tmp_path / "a" / "journal" / B)
    assert calls(Site(tmp_path / "a", objects)) == {"acme": 2}


def test_a_front_that_only_the_archive_has_counts(tmp_path: pathlib.Path, objects: LocalObjects) -> None:
    place = Place(tmp_path, objects)
    directory = place.of([start(writer=A), *lines(), stop(at_ns=END_NS + 1)], writer=A, per_segment=3)
    archiver = place.archiver()
    archiver.archive(directory)
    assert Trimmer(place.archive, archiver, place.maker).trim([directory], 1, {A}) > 0
    assert directory.starts_after > 0
    assert calls(Site(tmp_path, objects)) == {"acme": 2}


def test_another_gateway_that_is_archived_in_part_is_waited_for(
    tmp_path: pathlib.Path, objects: LocalObjects
) -> None:
    """Its last segment is not sealed yet, so that nobody here knows whether it has told all."""
    archived(tmp_path / "b", objects, lines(tenant="globex")[:6], B)
    site = Site(tmp_path / "a", objects)
    site.journal(lines(), writer=A)
    closing = site.closing(END_NS + MINUTE_NS, HOURS)
    assert closing.waits_for(HOUR) == [B]
    assert calls(site, END_NS + MINUTE_NS) == {}
    assert calls(site)["acme"] == 2
    (manifest,) = site.closes.hours(HOURS)
    assert [(one.writer, one.complete) for one in manifest.writers] == [(A, "tick"), (B, "deadline")]


def test_gateways_whose_told_hour_is_archived_close_it_once(
    tmp_path: pathlib.Path, objects: LocalObjects
) -> None:
    """The segment that ends with the telling tick is there: what follows in the next one changes nothing."""
    told = lines(tenant="globex")[
        :8
    ]  # its second segment ends with the tick at the full hour, a third one grows
    place = archived(tmp_path / "b", objects, told, B)
    site = Site(tmp_path / "a", objects)
    site.journal(lines(), writer=A)
    assert calls(site, END_NS + 3 * MINUTE_NS) == {"acme": 2, "globex": 2}
    (manifest,) = site.closes.hours(HOURS)
    assert [(one.writer, one.complete) for one in manifest.writers] == [(A, "tick"), (B, "tick")]
    shutil.rmtree(tmp_path / "b" / "journal" / B)
    whole = [start(writer=B), *lines(tenant="globex"), stop(at_ns=END_NS + NS_PER_HOUR // 2)]
    place.archiver().archive(place.of(whole, writer=B, per_segment=4))
    assert calls(site, LATE_NS + NS_PER_HOUR) == {"acme": 2, "globex": 2}
    assert [one.revision for one in site.closes.revisions(HOUR)] == [1]


def test_what_is_archived_later_makes_a_revision(tmp_path: pathlib.Path, objects: LocalObjects) -> None:
    site = Site(tmp_path / "a", objects)
    site.journal(lines(), writer=A)
    assert calls(site) == {"acme": 2}
    archived(tmp_path / "b", objects, [*lines(tenant="globex"), stop(at_ns=END_NS + 1)], B)
    assert calls(site) == {"acme": 2, "globex": 2}
    assert [one.revision for one in site.closes.revisions(HOUR)] == [1, 2]


def test_lost_calls_of_a_directory_that_was_closed_count(
    tmp_path: pathlib.Path, objects: LocalObjects
) -> None:
    place = Place(tmp_path / "b", objects)
    makes = [start(writer=B), *lines()[:6], admitted("w-9", at_ns=AT_NS + 40 * MINUTE_NS, tenant="lost")]
    directory = Directory(write_directory(place.journals, makes, writer=B, per_segment=4))
    salvage_dead(place.journals)
    assert calls(Site(tmp_path / "b")) == {"acme": 2, "lost": 1}
    seal_all(directory)
    make_facts(place.maker, directory)
    place.archiver().archive(directory)
    site = Site(tmp_path / "a", objects)
    assert calls(site) == {"acme": 2, "lost": 1}


def test_a_lost_call_that_is_billed_is_estimated_in_its_hour_and_holds_no_slot(
    tmp_path: pathlib.Path,
) -> None:
    expected = Expected(
        cost_pusd=17, price_basis=PriceBasis(kind="card"), rate_card="m1/inf2@2026-01-01", unpriced_reason=None,
        usage=Usage(source=UsageSource.ESTIMATED, prompt_tokens=10, completion_tokens=5),
    )  # fmt: skip
    place = Place(tmp_path)
    at_ns = AT_NS + 40 * MINUTE_NS
    makes = [start(writer=A), *lines()[:6], admitted("w-9", at_ns=at_ns, tenant="billed", expected=expected)]
    write_directory(place.journals, makes, writer=A, per_segment=4)
    salvage_dead(place.journals)
    site = Site(tmp_path)
    assert calls(site) == {"acme": 2, "billed": 1}
    (row,) = (row for row in rows(site) if row.tenant == "billed")
    assert (row.estimated_pusd, row.prompt_tokens, row.completion_tokens) == (17, 10, 5)
    assert (row.instance_id, row.micro_hours, row.slot_ns, row.unpriced_calls) == (None, 0, 0, 0)


def test_an_archived_segment_without_facts_has_them_made(
    tmp_path: pathlib.Path, objects: LocalObjects
) -> None:
    """They could not be made where it was archived."""
    place = Place(tmp_path / "b", objects)
    makes = [start(writer=B), *lines(), stop(at_ns=END_NS + 1)]
    directory = Directory(write_directory(place.journals, makes, writer=B, per_segment=4))
    seal_all(directory)
    place.archiver().archive(directory)
    manifests: list[Manifest] = place.archive.directory(B).manifests
    assert [one.facts for one in manifests] == [()] * len(manifests)
    assert calls(Site(tmp_path / "a", objects)) == {"acme": 2}


def test_whoever_is_silent_is_named_and_not_waited_for(tmp_path: pathlib.Path) -> None:
    site = Site(tmp_path)
    site.journal([registration(AT_NS - 3 * NS_PER_HOUR), tick(at_ns=AT_NS - 2 * NS_PER_HOUR)], writer=A)
    site.journal(lines(), writer=B)
    assert calls(site, END_NS + 1) == {"acme": 2}
    (manifest,) = site.closes.hours(HOURS)
    assert manifest.missing == (A,)


def test_who_stands_in_the_store_and_nowhere_else_is_waited_for_and_named(tmp_path: pathlib.Path) -> None:
    site = Site(tmp_path)
    site.journal(lines(), writer=A)
    closing = site.closing(END_NS + 1, HOURS, registered={A: END_NS, B: END_NS})
    assert closing.waits_for(HOUR) == [B]
    assert closing.due() == []
    closing = site.closing(LATE_NS, HOURS, registered={A: END_NS, B: END_NS})
    (made,) = closing.close(closing.due(), site.told.append, site.root / "work")
    assert made.missing == (B,)
