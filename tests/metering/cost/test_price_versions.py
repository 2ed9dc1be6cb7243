"""Imported prices as they are kept: in order, whole, and the same here and in the archive."""

import pathlib

import msgspec
import pytest

from metering.archive.objects import AlreadyThere, ArchiveError, LocalObjects
from metering.cost.price_book import InstancePrice
from metering.cost.price_versions import PriceVersion, PriceVersions, bring_level, path_of


def put(objects: LocalObjects, uusd: int) -> PriceVersion:
    kept = PriceVersions(objects).all()
    price = InstancePrice(
        date="2026-11-28", instance_type="inf2.xlarge", region=None, source="list", uusd_per_hour=uusd
    )
    version = PriceVersion(
        added=(price,), file="prices.csv", file_sha256="0" * 64, imported_ns=uusd, made_by="cli:ops",
        number=len(kept) + 1, previous=kept[-1].sha256 if kept else None,
    )  # fmt: skip
    PriceVersions(objects).put(version)
    return version


def amounts(objects: LocalObjects) -> list[int]:
    return [price.uusd_per_hour for price in PriceVersions(objects).prices()]


def test_versions_are_read_in_their_order(tmp_path: pathlib.Path) -> None:
    objects = LocalObjects(tmp_path)
    assert PriceVersions(objects).all() == []
    first, second = put(objects, 1), put(objects, 2)
    assert [stored.version for stored in PriceVersions(objects).all()] == [first, second]
    assert amounts(objects) == [1, 2]
    assert (tmp_path / "prices" / "000002.json").read_bytes().endswith(b"}\n")


def test_of_two_imports_at_once_one_has_to_look_again(tmp_path: pathlib.Path) -> None:
    objects = LocalObjects(tmp_path)
    version = put(objects, 1)
    with pytest.raises(AlreadyThere):
        PriceVersions(objects).put(msgspec.structs.replace(version, imported_ns=2))
    assert amounts(objects) == [1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_lost_or_changed_version_is_named(tmp_path: pathlib.Path, number: int) -> None:
    objects = LocalObjects(tmp_path)
    for uusd in (1, 2, 3):
        put(objects, uusd)
    file = tmp_path / path_of(number)
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(ArchiveError, match=f"{path_of(number + 1)} does not follow"):
        PriceVersions(objects).all()
    file.write_bytes(whole.replace(b'"imported_ns":', b'"imported_ns":1'))
    with pytest.raises(ArchiveError, match=f"{path_of(number + 1)} does not follow"):
        PriceVersions(objects).all()
    file.write_bytes(b"{}")
    with pytest.raises(ArchiveError, match=f"{path_of(number)} is no version"):
        PriceVersions(objects).all()


def test_the_archive_and_the_copy_get_what_they_lack(tmp_path: pathlib.Path) -> None:
    archive, here = LocalObjects(tmp_path / "archive"), LocalObjects(tmp_path / "state")
    put(here, 1)  # imported before there was an archive
    level = bring_level(archive, tmp_path / "state")
    put(archive, 2)  # imported by another host
    assert bring_level(archive, tmp_path / "state", level) == {path_of(1), path_of(2)}
    assert amounts(archive) == amounts(here) == [1, 2]


def test_two_different_imports_of_one_number_are_an_error(tmp_path: pathlib.Path) -> None:
    archive, here = LocalObjects(tmp_path / "archive"), LocalObjects(tmp_path / "state")
    put(here, 1)
    put(archive, 2)
    with pytest.raises(ArchiveError, match="is one import in the archive and another under"):
        bring_level(archive, tmp_path / "state")
    assert (amounts(archive), amounts(here)) == ([2], [1])
