"""What the next start of a state directory is told of the last one."""

import pathlib

import msgspec

from gateway.configuration.config import Config
from gateway.configuration.config_last import FILE, ConfigLast


def config(*backends: str) -> Config:
    tree = {
        "tenants": [{"name": "acme"}],
        "models": [{"name": "m1", "tiers": [{"backends": [backends[0]]}]}],
        "backends": [{"name": name, "url": "http://10.0.0.1:1", "model": "m"} for name in backends],
    }
    return msgspec.convert(tree, Config)


def test_of_a_first_start_nothing_is_gone(tmp_path: pathlib.Path) -> None:
    told = ConfigLast(tmp_path).changes(config("a"))
    assert ([one.topic for one in told.happenings], told.gone) == (["config"], [])


def test_what_is_not_there_any_more_is_told_once(tmp_path: pathlib.Path) -> None:
    last = ConfigLast(tmp_path)
    last.remember(config("a", "b"))
    told = last.changes(config("a"))
    assert [(word.backend, word.instance_id, word.state) for word in told.gone] == [
        ("b", "backend:b", "gone")
    ]
    assert [one.topic for one in told.happenings] == ["config"]
    last.remember(config("a"))
    assert last.changes(config("a")) == ([], [])


def test_what_cannot_be_read_counts_as_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / FILE).write_text("[]")
    told = ConfigLast(tmp_path).changes(config("a"))
    assert (len(told.happenings), told.gone) == (1, [])
