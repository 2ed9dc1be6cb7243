"""A worker's prices follow what is imported, and the copies of an archive follow it."""

import pathlib

import msgspec
import pytest

from gateway.configuration import price_books
from gateway.configuration.config import Config
from gateway.configuration.price_books import PriceCopies, WatchedPrices
from metering.archive.objects import LocalObjects
from metering.cost.price_book import InstancePrice
from metering.cost.price_versions import PriceVersion, PriceVersions
from metering.units import NS_PER_S

PRICE = InstancePrice(
    date=None,
    instance_type="trn2.48xlarge",
    region=None,
    source="list",
    uusd_per_hour=40_000_000,
    valid_from_ns=5,
)


def configured(state_dir: pathlib.Path) -> Config:
    return msgspec.convert(
        {
            "state_dir": str(state_dir),
            "tenants": [{"name": "acme"}],
            "models": [{"name": "m", "tiers": [{"backends": ["b"]}]}],
            "backends": [{"name": "b", "url": "http://127.0.0.1:1", "model": "m"}],
        },
        Config,
    )


def put(root: pathlib.Path, uusd: int) -> None:
    versions = PriceVersions(LocalObjects(root))
    kept = versions.all()
    version = PriceVersion(
        added=(msgspec.structs.replace(PRICE, uusd_per_hour=uusd),), file="f", file_sha256="0", imported_ns=1,
        made_by="cli:ops", number=len(kept) + 1, previous=kept[-1].sha256 if kept else None,
    )  # fmt: skip
    versions.put(version)


def asked(prices: WatchedPrices) -> int | None:
    found = prices.list.book.instance_price("trn2.48xlarge", "us-east-2", None, NS_PER_S)
    return None if found is None else found.uusd_per_hour


def test_a_worker_looks_at_what_is_new(tmp_path: pathlib.Path) -> None:
    prices = WatchedPrices(configured(tmp_path))
    assert (asked(prices), prices.look()) == (None, False)
    put(tmp_path, 7)
    assert (prices.look(), asked(prices), prices.look()) == (True, 7, False)
    put(tmp_path, 7)
    assert (prices.look(), asked(prices)) == (False, 7)  # the same again: no tariff has to be made anew
    put(tmp_path, 9)
    assert (prices.look(), asked(prices)) == (True, 9)
    assert asked(WatchedPrices(configured(tmp_path))) == 9


def test_what_cannot_be_read_changes_nothing(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, 7)
    prices = WatchedPrices(configured(tmp_path))
    (tmp_path / "prices" / "000002.json").write_bytes(b"{")
    assert (prices.look(), prices.look(), asked(prices)) == (False, False, 7)
    assert [record.message for record in caplog.records] == ["imported prices cannot be used"]


def test_copies_are_brought_level_now_and_then(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "archive", 7)
    copies = PriceCopies(LocalObjects(tmp_path / "archive"), tmp_path / "state")
    copies.bring_level_if_due()
    put(tmp_path / "archive", 9)
    copies.bring_level_if_due()  # too soon
    assert len(PriceVersions(LocalObjects(tmp_path / "state")).all()) == 1
    monkeypatch.setattr(price_books, "LEVEL_S", 0.0)
    again = PriceCopies(LocalObjects(tmp_path / "archive"), tmp_path / "state")
    again.bring_level_if_due()
    again.bring_level_if_due()
    assert len(PriceVersions(LocalObjects(tmp_path / "state")).all()) == 2
