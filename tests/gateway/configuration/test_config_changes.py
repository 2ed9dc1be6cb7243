"""What is told of a changed configuration: each changed key by its path, each price, and no secret."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.configuration import config as cfg
from gateway.configuration import config_changes
from gateway.configuration.config import Config
from gateway.configuration.config_changes import changes, remembered

CARD = {"family": "inf2", "prompt": "1", "completion": "2", "date": "2026-11-01", "source": "ours"}
PRICE = {"instance_type": "inf2.48xlarge", "usd_per_hour": "1", "date": "2026-11-01", "source": "ours"}
TREE: dict[str, Any] = {
    "tenants": [{"name": "acme", "keys": [{"hash": "sha256:" + "0" * 64}]}, {"name": "beta"}],
    "models": [{"name": "m1", "tiers": [{"backends": ["b1"]}], "rate_cards": [CARD]}],
    "backends": [{"name": "b1", "url": "http://10.0.0.1:1", "model": "m"}],
    "prices": [PRICE],
}


def config(**more: Any) -> Config:
    return msgspec.convert(TREE | more, Config)


def told(before: Config, after: Config) -> dict[str, dict[str, str]]:
    return {event.topic: event.data for event in changes(remembered(before), after)}


def test_nothing_is_told_of_the_same() -> None:
    assert changes(remembered(config()), config()) == []


def test_of_the_first_start_only_the_digest_and_the_prices_are_told() -> None:
    first, price, card = changes(None, config())
    assert first.data == {"digest": cfg.digest(config())}
    assert (card.data["of"], json.loads(card.data["after"])) == (
        "m1/inf2@2026-11-01",
        CARD | {"per_request": "0"},
    )
    assert (price.data["of"], json.loads(price.data["after"])) == (
        "inf2.48xlarge on-demand 2026-11-01",
        PRICE | {"purchase_option": "on-demand"},
    )
    assert "before" not in card.data


def test_the_digests_are_those_of_the_starts() -> None:
    after = config(workers=2)
    assert told(config(), after)["config"] == {
        "before": cfg.digest(config()), "changed": "workers", "digest": cfg.digest(after)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({"bounds": {"idle_s": 3.0}}, "bounds.idle_s"),
        ({"tenants": [*TREE["tenants"], {"name": "new"}]}, "tenants[new]"),
        ({"tenants": TREE["tenants"][:1]}, "tenants[beta]"),
        ({"tenants": TREE["tenants"][::-1]}, "tenants"),  # only their order
        ({"tenants": [{"name": "acme"}, {"name": "beta"}]}, "tenants[acme].keys"),
        (  # keys that have no names of their own are told of together
            {
                "tenants": [
                    {"name": "acme", "keys": [{"hash": "sha256:" + c * 64} for c in "01"]},
                    {"name": "beta"},
                ]
            },
            "tenants[acme].keys",
        ),
        ({"backends": [{"name": "b1", "url": "http://10.0.0.2:1", "model": "m"}]}, "backends[b1].url"),
        ({"redis": {"url": "redis://:hunter2@db:6379"}}, None),
    ],
)
def test_each_changed_key_is_named(more: dict[str, Any], changed: str | None) -> None:
    found = told(config(), config(**more))
    assert found.get("config", {}).get("changed") == changed
    assert "prices" not in found


def test_a_changed_price_is_told_with_both_values() -> None:
    dearer = config(prices=[PRICE | {"usd_per_hour": "2"}])
    found = told(config(), dearer)
    assert found["config"]["changed"] == "prices"
    assert json.loads(found["prices"]["before"])["usd_per_hour"] == "1"
    assert json.loads(found["prices"]["after"])["usd_per_hour"] == "2"
    assert found["prices"]["what"] == "instance_price"


def test_a_price_that_goes_and_one_of_a_region() -> None:
    regional = config(prices=[PRICE | {"region": "us-east-2"}])
    events = [event.data for event in changes(remembered(config()), regional) if event.topic == "prices"]
    assert [(event["of"], "before" in event, "after" in event) for event in events] == [
        ("inf2.48xlarge on-demand 2026-11-01", True, False),
        ("inf2.48xlarge@us-east-2 on-demand 2026-11-01", False, True),
    ]


def test_neither_url_nor_password_nor_key_is_told() -> None:
    secret = config(
        redis={"url": "redis://:hunter2@db:6379"},
        tenants=[{"name": "acme", "keys": [{"hash": "sha256:" + "7" * 64}]}],
        backends=[{"name": "b1", "url": "http://10.9.9.9:1", "model": "m"}],
    )
    text = repr(changes(remembered(config()), secret))
    assert not any(word in text for word in ("hunter2", "10.9.9.9", "7" * 64))
    assert b"hunter2" not in remembered(secret)


@pytest.mark.parametrize("kept", [b"", b"[]", b"{", b'{"models":[{}]}', b'{"prices":[1]}'])
def test_what_is_no_configuration_is_refused(kept: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        changes(kept, config())


NAMED = st.lists(
    st.fixed_dictionaries({"name": st.text("ab", min_size=1, max_size=2)}, optional={"x": st.integers()}),
    unique_by=lambda item: item["name"],
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner) | st.lists(inner) | NAMED,
    max_leaves=12,
)


@given(TREES, TREES)
def test_paths_are_told_exactly_when_something_differs(before: Any, after: Any) -> None:
    changed = list(config_changes._changed({"k": before}, {"k": after}, ""))
    assert bool(changed) == (json.dumps(before) != json.dumps(after) and before != after)
