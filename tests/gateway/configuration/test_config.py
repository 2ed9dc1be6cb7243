"""The configuration: what is read from where, and that every mistake is named at its place."""

import pathlib
import textwrap

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from gateway.configuration import config, config_load
from gateway.configuration.config import Config, Redis
from gateway.configuration.config_check import file_system, wrong_redis_url
from gateway.configuration.config_load import Flags, Served
from gateway.configuration.config_tree import ConfigErrors, scalar

HASH = "sha256:" + "0" * 63 + "1"
GOOD = f"""\
listen: 127.0.0.1:8080
tenants:
  - name: acme
    projects: [chat, batch]
    tags: {{cost_centre: "42"}}
    keys:
      - hash: {HASH}
models:
  - name: llama
    aliases: [meta/Llama-3.1-8B]
    tiers:
      - backends: [inf2-a]
      - backends: [gpu]
    rate_cards:
      - family: inf2
        prompt: "0.15"
        completion: "0.60"
        date: 2026-11-01
        source: our list
backends:
  - name: inf2-a
    url: http://127.0.0.1:8001
    model: llama
    instance_type: inf2.48xlarge
    slots: 8
  - name: gpu
    url: http://127.0.0.1:8002
    model: llama
"""


def load(
    directory: pathlib.Path, text: str, env: dict[str, str] | None = None, flags: Flags = config_load.NO_FLAGS
) -> Config:
    file = directory / "w.yaml"
    file.write_text(textwrap.dedent(text))
    return config_load.load(file, env or {}, flags)


def mistakes(
    directory: pathlib.Path, text: str, env: dict[str, str] | None = None, flags: Flags = config_load.NO_FLAGS
) -> list[str]:
    """What is wrong, without the file's directory."""
    with pytest.raises(ConfigErrors) as caught:
        load(directory, text, env, flags)
    assert str(caught.value).splitlines() == [str(one) for one in caught.value.mistakes]
    return [str(one).replace(f"{directory}/", "") for one in caught.value.mistakes]


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def test_a_file_with_defaults(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, GOOD)
    assert found.listen == "127.0.0.1:8080"
    assert found.workers == 1
    assert found.state_dir == ".weighbridge"
    assert found.journal == config.Journal()
    assert found.timeouts.first_event_s == 60.0
    assert found.tenants[0].keys[0].scopes == ("inference",)
    assert found.tenants[0].tags == {"cost_centre": "42"}
    assert found.models[0].tiers[1].patience_s == 0.5
    assert found.models[0].rate_cards[0].date == "2026-11-01"  # YAML 1.1 would make a date of it
    assert found.backends[0].slots == 8


TWICE = "    url: http://a\n    model: llama\n  - name: gpu\n    url: http://b"

ORIGIN = 'cors.origins[0]: must be an origin as browsers send it, as in "https://app.example.com", or "*"'

# What is changed, and what is then said: one row a mistake.
ONE_MISTAKE = [
    # form
    ("listen: 127.0.0.1:8080", "lisen: x", 1, "lisen: is no key here; did you mean listen?"),
    ("    slots: 8", "    slots: 8\n    retention: 9", 26, "backends[0].retention: is no key here"),
    ("    slots: 8", "    slots: 8\n    slots: 9", 26, "backends[0].slots: is given twice; first on line 25"),
    ("    slots: 8", "    <<: {a: b}", 25, "backends[0].<<: merge keys are not supported; write the keys out"),
    ("    slots: 8", "    ? [a]\n    : b", 25, "backends[0]: a key must be a word"),
    ("    slots: 8", "    slots: !env 8", 25, "backends[0].slots: the tag !env is not supported"),
    # types and bounds
    ("listen: 127.0.0.1:8080", "listen: 8080", 1, 'listen: must be a string; put it in quotes: "8080"'),
    ("listen: 127.0.0.1:8080", "state_dir: ''", 1, "state_dir: is empty"),
    ("listen: 127.0.0.1:8080", 'state_dir: "a\\tb"', 1, "state_dir: must have no control characters"),
    ("    slots: 8", "    slots: eight", 25, "backends[0].slots: must be a whole number"),
    ("    slots: 8", "    slots: 8.0", 25, "backends[0].slots: must be a whole number"),
    ("    slots: 8", "    slots: true", 25, "backends[0].slots: must be a whole number"),
    ("    slots: 8", "    slots: 0", 25, "backends[0].slots: must be at least 1"),
    ("    slots: 8", "    slots: 99999999999999999999", 25, "backends[0].slots: must be at most 1000000000"),
    ("    slots: 8", "    az: " + "a" * 257, 25, "backends[0].az: must have at most 256 characters"),
    ("    slots: 8", "    account: 0123", 25, 'backends[0].account: must be a string; put it in quotes: "0123"'),
    ("listen: 127.0.0.1:8080", "workers: 257", 1, "workers: must be at most 256"),
    ("listen: 127.0.0.1:8080", "timeouts: {connect_s: 0}", 1, "timeouts.connect_s: must be above 0"),
    ("listen: 127.0.0.1:8080", "timeouts: {total_s: 1.0e+300}", 1, "timeouts.total_s: must be at most 604800"),
    ("listen: 127.0.0.1:8080", "timeouts: {total_s: 1.0e+400}", 1, "timeouts.total_s: must be at most 604800"),
    (
        "      - backends: [gpu]",
        "      - backends: [gpu]\n        patience_s: 1.0e+300",
        14, "models[0].tiers[1].patience_s: must be at most 604800",
    ),
    (
        "listen: 127.0.0.1:8080",
        "journal: {fsync_interval_ms: 60001}",
        1, "journal.fsync_interval_ms: must be at most 60000",
    ),
    ("listen: 127.0.0.1:8080", "bounds: {idle_s: 0}", 1, "bounds.idle_s: must be above 0"),
    ("listen: 127.0.0.1:8080", "bounds: {head_bytes_max: 512}", 1, "bounds.head_bytes_max: must be at least 1024"),
    (
        "listen: 127.0.0.1:8080",
        "bounds: {body_bytes_max: 1073741825}",
        1, "bounds.body_bytes_max: must be at most 1073741824",
    ),
    ("listen: 127.0.0.1:8080", "bounds: {loop_lag_ms_max: 0}", 1, "bounds.loop_lag_ms_max: must be at least 10"),
    ("listen: 127.0.0.1:8080", "keepalive_s: -1", 1, "keepalive_s: must be at least 0"),
    ("listen: 127.0.0.1:8080", "drain_s: 3601", 1, "drain_s: must be at most 3600"),
    (
        "listen: 127.0.0.1:8080",
        "driver: fast",
        1, "driver: must be one of direct, plain",
    ),
    (
        "listen: 127.0.0.1:8080",
        "cors: {origins: ['http://a', '*']}",
        1, 'cors.origins[1]: "*" is every origin; it stands alone',
    ),
    (
        "listen: 127.0.0.1:8080",
        "cors: {origins: ['http://a', 'http://a']}",
        1, "cors.origins[1]: is the same as cors.origins[0]",
    ),
    ("listen: 127.0.0.1:8080", "cors: {origins: ['http://a/']}", 1, ORIGIN),
    ("listen: 127.0.0.1:8080", "cors: {origins: ['http://A']}", 1, ORIGIN),
    ("listen: 127.0.0.1:8080", "cors: {origins: ['null']}", 1, ORIGIN),
    (
        "listen: 127.0.0.1:8080",
        "journal: {bytes_max: 99999999999999999999}",
        1, "journal.bytes_max: must be at most",
    ),
    ("listen: 127.0.0.1:8080", "timeouts: {connect_s: .inf}", 1, "timeouts.connect_s: must be a number"),
    (
        "listen: 127.0.0.1:8080",
        "journal: {fsync: never}",
        1, "journal.fsync: must be one of always, interval, os",
    ),
    ("listen: 127.0.0.1:8080", "redis: x", 1, "redis: must be a section with keys of url, url_file, ca_file"),
    ("    projects: [chat, batch]", "    projects: chat", 4, "tenants[0].projects: must be a list"),
    ('    tags: {cost_centre: "42"}', "    tags: [a]", 5, "tenants[0].tags: must be a section of names"),
    (
        '    tags: {cost_centre: "42"}',
        "    tags: {" + ", ".join(f"t{i}: x" for i in range(17)) + "}",
        5, "tenants[0].tags: must have at most 16 names",
    ),
    (
        '    tags: {cost_centre: "42"}',
        "    tags: {" + ", ".join(f"t{i}: {'€' * 250}" for i in range(8)) + "}",
        5, "tenants[0].tags: must have at most 4096 bytes, all together",
    ),
    ('    tags: {cost_centre: "42"}', "    tags: {Cost: x}", 5, "tenants[0].tags.Cost: must be a name"),
    # names
    ("  - name: acme", "  - name: Acme", 3, "tenants[0].name: must be a name: lower-case letters"),
    ("  - name: acme", "  - name: true", 3, 'tenants[0].name: must be a string; put it in quotes: "true"'),
    ("    url: http://127.0.0.1:8002\n", "", 26, "backends[1].url: is missing"),
    ("[chat, batch]", "[chat, chat]", 4, "tenants[0].projects[1]: is the same as tenants[0].projects[0]"),
    ("    url: http://127.0.0.1:8002", TWICE, 29, "backends[2].name: is the same as backends[1]"),
    # keys
    (f"hash: {HASH}", "hash: wb-abc", 7, 'tenants[0].keys[0].hash: must be "sha256:" and 64 hex digits'),
    (
        f"      - hash: {HASH}",
        f"      - hash: {HASH}\n      - hash: {HASH}",
        8, "tenants[0].keys[1].hash: is the same key as tenants[0].keys[0]",
    ),
    (
        f"      - hash: {HASH}",
        f"      - hash: {HASH}\n        scopes: [inferense]",
        8, "tenants[0].keys[0].scopes[0]: must be one of auditor, finance, inference, operator; "
        "did you mean inference?",
    ),
    # models
    ("[inf2-a]", "[inf2-b]", 12, "models[0].tiers[0].backends[0]: there is no backend inf2-b; did you mean inf2-a?"),
    ("[gpu]", "[inf2-a]", 13, "models[0].tiers[1].backends[0]: inf2-a stands in models[0].tiers[0]"),
    ("[gpu]", "[]", 13, "models[0].tiers[1].backends: must have at least one item"),
    ("[meta/Llama-3.1-8B]", "[llama]", 10, "models[0].aliases[0]: llama is the name of a model already"),
    ("[meta/Llama-3.1-8B]", "[a, a]", 10, "models[0].aliases[1]: a is taken by models[0].aliases[0]"),
    # prices
    (
        'prompt: "0.15"',
        "prompt: 0.15",
        16, 'models[0].rate_cards[0].prompt: is a price: write it in quotes, "0.15"; a bare number would be rounded',
    ),
    ('prompt: "0.15"', 'prompt: "1e3"', 16, "models[0].rate_cards[0].prompt: '1e3' is no amount in USD"),
    ('prompt: "0.15"', 'prompt: "0.0000000000001"', 16, "models[0].rate_cards[0].prompt: 0.0000000000001 USD is finer"),
    ("      - family: inf2\n        prompt", "      - prompt", 15, "models[0].rate_cards[0]: must have one of family"),
    ("date: 2026-11-01", "date: 2026-13-01", 18, "models[0].rate_cards[0].date: '2026-13-01' is no date"),
    ("date: 2026-11-01", "date: 20261101", 18, 'models[0].rate_cards[0].date: must be a string; put it in quotes'),
    ("date: 2026-11-01", "date: '20261101'", 18, "models[0].rate_cards[0].date: '20261101' is no date: not of"),
    (
        "date: 2026-11-01", "date: 2026-11-01\n        per_request: 0.5",
        19, "models[0].rate_cards[0].per_request: is a price",
    ),
    (
        "date: 2026-11-01", "date: 2026-11-01\n        other: {audio_s: '6 USD'}",
        19, "models[0].rate_cards[0].other.audio_s: '6 USD' is no amount in USD",
    ),
    (
        "date: 2026-11-01", "date: 2026-11-01\n        other: {reasoning_tokens: '1'}",
        19, "models[0].rate_cards[0].other.reasoning_tokens: is priced already",
    ),
    (
        "    rate_cards:", "    work_units: [{family: a, date: soon, source: x}]\n    rate_cards:",
        14, "models[0].work_units[0].date: 'soon' is no date",
    ),
    (
        "    rate_cards:", "    work_units: [{date: 2026-11-01, source: x}]\n    rate_cards:",
        14, "models[0].work_units[0]: must have one of family and instance_type",
    ),
    (
        "listen: 127.0.0.1:8080",
        "instance_types: [{name: inf2.xlarge, family: inf2, accelerator: x, accelerator_count: 1}]",
        1, "instance_types[0].name: inf2.xlarge is in the shipped table already",
    ),
    (
        "listen: 127.0.0.1:8080",
        'prices: [{instance_type: t, usd_per_hour: "1", date: 2026-11-01, source: x, purchase_option: lease}]',
        1, "prices[0].purchase_option: must be one of ",
    ),
    (
        "listen: 127.0.0.1:8080",
        'prices: [{instance_type: a.b, usd_per_hour: "0.0000001", date: 2026-11-01, source: x}]',
        1, "prices[0].usd_per_hour: 0.0000001 USD is finer",
    ),
    # addresses
    ("listen: 127.0.0.1:8080", "listen: localhost", 1, "listen: 'localhost' must be \"host:port\""),
    ("listen: 127.0.0.1:8080", "listen: localhost:65536", 1, "listen: 'localhost:65536' must be"),
    ("listen: 127.0.0.1:8080", "listen: '::1:80'", 1, "listen: '::1:80': an IPv6 address stands in brackets"),
    ("listen: 127.0.0.1:8080", "ops: {listen: '127.0.0.1:8080'}", 1, "ops.listen: is the same address as listen"),
    ("http://127.0.0.1:8002", "ftp://gpu", 27, "backends[1].url: must be http://host[:port] or https://host[:port]"),
    ("http://127.0.0.1:8002", "https://gpu/v1", 27, "backends[1].url: must be without the path /v1: https://host"),
    (
        "    url: http://127.0.0.1:8002", "    url: http://127.0.0.1:8002\n    ca_file: ca.pem",
        28, "backends[1].ca_file: goes with an https url only",
    ),
    (
        "    url: http://127.0.0.1:8002", "    url: http://127.0.0.1:8002\n    server_name: gpu",
        28, "backends[1].server_name: goes with an https url only",
    ),
    (
        "    url: http://127.0.0.1:8002", "    url: https://127.0.0.1:8002\n    server_name: no name",
        28, "backends[1].server_name: must be a host name",
    ),
    ("http://127.0.0.1:8002", "gpu:8002", 27, "backends[1].url: must be http://host[:port]"),
    ("http://127.0.0.1:8002", "http://gpu:x", 27, "backends[1].url: is no URL"),
    ("http://127.0.0.1:8002", "http://gpu/v1", 27, "backends[1].url: must be without the path /v1"),
    ("http://127.0.0.1:8002", "http://gpu/x", 27, "backends[1].url: must have nothing after the port"),
    ("http://127.0.0.1:8002", "http://u:p@gpu", 27, "backends[1].url: must hold no user or password"),
    ("listen: 127.0.0.1:8080", "redis: {url: 'http://x'}", 1, "redis.url: must be redis://host:port"),
    (
        "listen: 127.0.0.1:8080",
        "redis: {url: 'redis://x', url_file: y}",
        1, "redis.url_file: cannot stand beside redis.url",
    ),
    ("listen: 127.0.0.1:8080", "redis: {ca_file: y}", 1, "redis.ca_file: goes with redis.url or redis.url_file"),
    (
        "listen: 127.0.0.1:8080", "redis: {url: 'redis://x', ca_file: y}",
        1, "redis.ca_file: goes with a rediss:// URL only",
    ),
    # sizes
    ("    slots: 8", "    units: 25", 25, "backends[0].units: 25 is more than the instance has: 24"),
    ("    slots: 8", "    units: 9\n    units_total: 8", 25, "backends[0].units: 9 is more than the instance has: 8"),
    (
        "    instance_type: inf2.48xlarge\n    slots: 8",
        "    units: 1",
        24, "backends[0].units: units_total must be given too: the size of an instance that is not named",
    ),
    (
        "    instance_type: inf2.48xlarge",
        "    instance_type: box\n    units: 1",
        25, "backends[0].units: units_total must be given too: the size of box",
    ),
    ("listen: 127.0.0.1:8080", "journal: {bytes_max: 2000000}", 1, "journal.bytes_max: must not be below"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "said"), ONE_MISTAKE)
def test_one_mistake_is_named_once_at_its_place(
    tmp_path: pathlib.Path, old: str, new: str, line: int, said: str
) -> None:
    (found,) = mistakes(tmp_path, changed(old, new))
    assert found.startswith(f"w.yaml:{line}: {said}")


def test_all_mistakes_are_named_at_once(tmp_path: pathlib.Path) -> None:
    text = GOOD
    expected = []
    # One of each that leaves the lines of the others where they are.
    for old, new, line, said in ONE_MISTAKE:
        if "\n" not in old + new and text.count(old) == 1 and "stands in" not in said:
            text = text.replace(old, new)
            expected.append(f"w.yaml:{line}: {said}")
    found = mistakes(tmp_path, text)
    assert len(expected) > 8
    for said in expected:
        assert [one for one in found if one.startswith(said)], said
    assert len(found) == len(expected)


def test_what_is_under_a_broken_section_is_not_reported_too(tmp_path: pathlib.Path) -> None:
    (found,) = mistakes(tmp_path, changed("      - backends: [gpu]", "      - gpu"))
    assert found.startswith(
        "w.yaml:13: models[0].tiers[1]: must be a section with keys of backends, patience_s"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["backends: is missing", "models: is missing"]),
        ("- a", ["must be a mapping of keys"]),
        ("a: [", ["is no YAML"]),
        ("a:\n\tb: c", ["w.yaml:2: is no YAML: a tab; indent with spaces"]),
        ('a: "4711\nb: c\nd: "e"', ["(while parsing a block mapping that begins on line 1)"]),
        ("a: b: c", ["is no YAML"]),
        ("a: 1\n---\nb: 2", ["is no YAML"]),
        ("a: \x01", ["is no YAML"]),
        ("a: &x [*x]", ["an alias to a value that holds it"]),
        ("a: " + "[" * 1000, ["is nested too deeply"]),
        ("tenants: []\nmodels: []\nbackends: []", ["must have at least one item"] * 2),
        ("tenants:\nmodels:\nbackends:", ["must be a list"] * 2),
    ],
)
def test_what_is_no_configuration_at_all(tmp_path: pathlib.Path, text: str, said: list[str]) -> None:
    found = mistakes(tmp_path, text)
    assert len(found) == len(said)
    for one, words in zip(found, said, strict=True):
        assert words in one


def test_aliases_of_aliases_do_not_multiply_for_ever(tmp_path: pathlib.Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (found,) = mistakes(tmp_path, "\n".join(lines))
    assert "more than 100000 values" in found


def test_not_utf8_names_the_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_bytes(b"a: b\nc: \xff\n")
    with pytest.raises(ConfigErrors, match=r"w\.yaml:2: is not UTF-8"):
        config_load.load(file, {})


def test_a_file_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigErrors, match="cannot be read: No such file"):
        config_load.load(tmp_path / "w.yaml", {})


def test_a_section_with_all_keys_commented_out_is_as_if_not_there(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, "timeouts:\n  # connect_s: 1\n" + GOOD).timeouts == config.Timeouts()
    assert load(tmp_path, changed("    slots: 8", "    slots:")).backends[0].slots is None


@given(st.integers(-(10**30), 10**30))
def test_scalars_that_are_whole_numbers(number: int) -> None:
    assert scalar(str(number)) == number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("", None), ("null", None), ("true", True), ("False", False), ("yes", "yes"), ("on", "on"),
        ("010", 10), ("0x10", "0x10"), ("1_000", "1_000"), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), (".", "."),
        ("2026-11-01", "2026-11-01"), ("12:30", "12:30"), (".nan", ".nan"),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_flag_over_environment_over_file_over_default(tmp_path: pathlib.Path) -> None:
    env = {"WEIGHBRIDGE_PORT": "9001", "WEIGHBRIDGE_STATE_DIR": "/nowhere/env"}
    file = changed("listen: 127.0.0.1:8080", "listen: 0.0.0.0:8000\nstate_dir: /nowhere/file")
    assert load(tmp_path, file).listen == "0.0.0.0:8000"
    assert load(tmp_path, file).state_dir == "/nowhere/file"
    assert load(tmp_path, file, env).listen == "0.0.0.0:9001"
    assert load(tmp_path, file, env).state_dir == "/nowhere/env"
    flags = Flags(port=9002, state_dir="/nowhere/flag")
    assert load(tmp_path, file, env, flags).listen == "0.0.0.0:9002"
    assert load(tmp_path, file, env, flags).state_dir == "/nowhere/flag"


@pytest.mark.parametrize(
    ("env", "port", "expected"),
    [
        ({}, None, ("127.0.0.1", 8080)),
        ({"WEIGHBRIDGE_PORT": "9001"}, None, ("127.0.0.1", 9001)),
        ({"WEIGHBRIDGE_PORT": "9001"}, 9002, ("127.0.0.1", 9002)),
        ({"WEIGHBRIDGE_LISTEN": "[::1]:8000"}, None, ("::1", 8000)),
        ({"WEIGHBRIDGE_LISTEN": "0.0.0.0:8000", "WEIGHBRIDGE_PORT": "9001"}, None, ("0.0.0.0", 9001)),
        ({"WEIGHBRIDGE_PORT": "tcp://10.0.0.1:80", "WEIGHBRIDGE_WORKERS": "x"}, None, ("127.0.0.1", 8080)),
    ],
)
def test_where_to_listen_without_a_file(
    env: dict[str, str], port: int | None, expected: tuple[str, int]
) -> None:
    assert config_load.listen(env, Flags(port=port)) == expected


@pytest.mark.parametrize(
    "env", [{"WEIGHBRIDGE_PORT": "99999"}, {"WEIGHBRIDGE_LISTEN": "8080"}, {"WEIGHBRIDGE_LISTEN": "::1:80"}]
)
def test_a_wrong_place_to_listen_is_named_without_a_file_too(env: dict[str, str]) -> None:
    with pytest.raises(ConfigErrors, match=next(iter(env))):
        config_load.listen(env, config_load.NO_FLAGS)


def test_any_key_can_come_from_the_environment(tmp_path: pathlib.Path) -> None:
    env = {
        "WEIGHBRIDGE_WORKERS": "2",
        "WEIGHBRIDGE_TIMEOUTS__CONNECT_S": "1",
        "WEIGHBRIDGE_JOURNAL__FSYNC": "os",
        "WEIGHBRIDGE_BACKENDS__1__URL": "http://other:1",
        "WEIGHBRIDGE_BACKENDS__1__SLOTS": "4",
        "WEIGHBRIDGE_TENANTS__1__NAME": "123",  # text: no quotes are needed here
        "WEIGHBRIDGE_TENANTS__1__TAGS__TEAM": "red",
        "WEIGHBRIDGE_TENANTS__1__PROJECTS__0": "a",
        "WEIGHBRIDGE_TENANTS__1__PROJECTS__1": "b",
        "WEIGHBRIDGE_MODELS__0__RATE_CARDS__0__PROMPT": "0.25",
    }
    found = load(tmp_path, GOOD, env)
    assert found.workers == 2
    assert found.timeouts.connect_s == 1.0
    assert found.journal.fsync == "os"
    assert (found.backends[1].url, found.backends[1].slots) == ("http://other:1", 4)
    assert found.backends[0].url == "http://127.0.0.1:8001"
    assert found.tenants[1].name == "123"
    assert found.tenants[1].tags == {"team": "red"}
    assert found.tenants[1].projects == ("a", "b")
    assert found.models[0].rate_cards[0].prompt == "0.25"


def test_the_environment_fills_empty_sections_and_replaces_items(tmp_path: pathlib.Path) -> None:
    env = {"WEIGHBRIDGE_OPS__LISTEN": ":9090", "WEIGHBRIDGE_TENANTS__0__PROJECTS__0": "a"}
    found = load(tmp_path, "ops:\n  # listen: x\n" + GOOD, env)
    assert found.ops.listen == ":9090"
    assert found.tenants[0].projects == ("a", "batch")


def test_list_items_are_laid_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    env = {f"WEIGHBRIDGE_TENANTS__{i}__NAME": f"t{i}" for i in range(1, 12)}
    assert [tenant.name for tenant in load(tmp_path, GOOD, env).tenants[1:]] == [
        f"t{i}" for i in range(1, 12)
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WEIGHBRIDGE_PORT", "http", "listen: 'http' is no port"),
        ("WEIGHBRIDGE_TIMEOUTS__CONNECT_S", "soon", "timeouts.connect_s: must be a number"),
        ("WEIGHBRIDGE_TIMEOUT__CONNECT_S", "1", "timeout: is no key here; did you mean timeouts?"),
        ("WEIGHBRIDGE_WORKER", "2", "worker: is no key; did you mean workers?"),
        ("WEIGHBRIDGE_BACKENDS__3__URL", "x", "backends[3]: is a list of 2;"),
        ("WEIGHBRIDGE_BACKENDS__X__URL", "x", "backends[x]: is a list of 2;"),
        ("WEIGHBRIDGE_LISTEN__PORT", "1", "listen: has no keys below it"),
        ("WEIGHBRIDGE_TENANTS", "acme", "tenants: must be a list"),
        ("WEIGHBRIDGE_REDIS_URL", "http://x", "redis.url: must be redis://host:port"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(tmp_path: pathlib.Path, name: str, value: str, said: str) -> None:
    (found,) = mistakes(tmp_path, GOOD, {name: value})
    assert found.startswith(f"{name}: {said}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEIGHBRIDGE_WORKERS", ""),  # empty is as good as not set
        ("WEIGHBRIDGE_CONFIG", "other.yaml"),  # read before
        ("WEIGHBRIDGE_API_KEY", "wb-x"),  # a client's
        ("WEIGHBRIDGE_PORT", "tcp://10.0.0.1:80"),  # Kubernetes, for a Service of this name
        ("WEIGHBRIDGE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("WEIGHBRIDGE_SERVICE_PORT_HTTP", "80"),
        ("PATH", "/bin"),
    ],
)
def test_variables_that_are_not_for_us(tmp_path: pathlib.Path, name: str, value: str) -> None:
    assert load(tmp_path, GOOD, {name: value}) == load(tmp_path, GOOD)


def test_a_store_from_the_environment_replaces_the_files(tmp_path: pathlib.Path) -> None:
    file = changed("listen: 127.0.0.1:8080", "redis: {url_file: /nowhere}")
    assert load(tmp_path, file, {"WEIGHBRIDGE_REDIS_URL": "redis://x"}).redis == Redis(url="redis://x")
    file = changed("listen: 127.0.0.1:8080", "redis: {url: 'redis://x'}")
    assert load(tmp_path, file, {"WEIGHBRIDGE_REDIS__URL_FILE": "y"}).redis == Redis(url_file="y")


def test_which_file() -> None:
    assert config_load.config_path(None, {}) == pathlib.Path("weighbridge.yaml")
    assert config_load.config_path(None, {"WEIGHBRIDGE_CONFIG": "a"}) == pathlib.Path("a")
    assert config_load.config_path("b", {"WEIGHBRIDGE_CONFIG": "a"}) == pathlib.Path("b")


def test_the_canonical_form_comes_back(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, GOOD)
    assert config.from_json(config.to_json(found)) == found
    assert b" " not in config.to_json(found).replace(b"our list", b"")


def test_the_digest_changes_with_what_bears_on_records_only(tmp_path: pathlib.Path) -> None:
    plain = config.digest(load(tmp_path, GOOD))
    assert config.digest(load(tmp_path, GOOD, {"WEIGHBRIDGE_REDIS_URL": "redis://:secret@x"})) == plain
    assert config.digest(load(tmp_path, changed('"0.15"', '"0.16"'))) != plain


def test_the_configuration_of_serve_backend() -> None:
    served = [
        Served(url="http://a:1", model="Qwen/Qwen3-8B"),
        Served(url="http://b:1", model="Qwen/Qwen3-8B"),
    ]
    found = config_load.for_backends(
        served,
        key_hash=HASH,
        env={"WEIGHBRIDGE_TIMEOUTS__TOTAL_S": "5"},
        flags=Flags(port=9, state_dir="s"),
        instance_type="g6e.xlarge",
        slots=4,
    )
    (model,) = found.models
    assert (model.name, model.aliases) == ("qwen-qwen3-8b", ("Qwen/Qwen3-8B",))
    assert model.tiers[0].backends == ("backend-1", "backend-2")
    assert [one.url for one in found.backends] == ["http://a:1", "http://b:1"]
    assert {(one.instance_type, one.slots, one.model) for one in found.backends} == {
        ("g6e.xlarge", 4, "Qwen/Qwen3-8B")
    }
    assert (found.tenants[0].name, found.tenants[0].keys[0].hash) == ("default", HASH)
    assert (found.listen, found.state_dir, found.timeouts.total_s) == ("127.0.0.1:9", "s", 5.0)


def test_serve_backend_mistakes_name_the_flag() -> None:
    with pytest.raises(ConfigErrors, match=r"^--backend: backends\[0\].url: must be http://host"):
        config_load.for_backends(
            [Served(url="a", model="m")], key_hash=HASH, env={}, flags=config_load.NO_FLAGS
        )


@pytest.mark.parametrize(
    ("served", "id_"),
    [
        ("m", "m"), ("Qwen/Qwen3-8B", "qwen-qwen3-8b"), ("/models/x y", "m-models-x-y"), ("Ü", "m-"),
        ("a" * 99, "a" * 63), ("_" + "a" * 99, "m_" + "a" * 61),
    ],
)  # fmt: skip
def test_a_models_id_from_its_served_name(served: str, id_: str) -> None:
    assert config_load.model_id(served) == id_


def test_where_the_data_is(tmp_path: pathlib.Path) -> None:
    assert config_load.place(None, {}).state_dir == ".weighbridge"
    env = {"WEIGHBRIDGE_STATE_DIR": "a", "WEIGHBRIDGE_REDIS_URL": "redis://x", "WEIGHBRIDGE_WORKERS": "no"}
    assert config_load.place(None, env) == config_load.Place(state_dir="a", redis=Redis(url="redis://x"))
    assert config_load.place(None, env, Flags(state_dir="b")).state_dir == "b"
    assert config_load.place(None, {"WEIGHBRIDGE_CHARGEBACK": "allocated"}).chargeback == "allocated"
    file = tmp_path / "w.yaml"
    file.write_text("state_dir: c\nnot_ours: 1\n")
    assert config_load.place(file, {}).state_dir == "c"
    file.write_text("state_dir: c\nstate_dir: d\n")
    with pytest.raises(ConfigErrors, match="twice"):
        config_load.place(file, {})
    file.write_text("redis: 5")
    with pytest.raises(ConfigErrors, match="must be a section"):
        config_load.place(file, {})


def test_secrets_come_from_files(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@x:1\n")
    assert config_load.redis_url(Redis(url_file=str(file))) == "redis://:secret@x:1"
    assert config_load.redis_url(Redis(url="redis://y")) == "redis://y"
    assert config_load.redis_url(Redis()) is None
    file.write_text("s3cr3t")
    with pytest.raises(ConfigErrors) as caught:
        config_load.redis_url(Redis(url_file=str(file)))
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(ConfigErrors, match="cannot be read"):
        config_load.redis_url(Redis(url_file=str(tmp_path / "none")))


def test_keys_of_backends_come_from_files(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.write_text("bk-secret\n")
    found = load(tmp_path, changed("    slots: 8", f"    key_file: {file}"))
    assert config_load.backend_keys(found) == {"inf2-a": "bk-secret"}
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigErrors, match=r"backends\[0\].key_file: cannot be read: it is no text"):
        config_load.backend_keys(found)
    file.unlink()
    with pytest.raises(ConfigErrors, match=r"backends\[0\].key_file: cannot be read"):
        config_load.backend_keys(found)


def test_the_stores_ca(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    url = config_load.redis_url(Redis(url="rediss://h?db=1", ca_file=str(file)))
    assert url == f"rediss://h?db=1&ssl_ca_certs={file}"
    assert (
        config_load.redis_url(Redis(url="rediss://h", ca_file=str(file))) == f"rediss://h?ssl_ca_certs={file}"
    )
    (tmp_path / "url").write_text("redis://h")
    with pytest.raises(ConfigErrors, match=r"redis\.ca_file: goes with a rediss:// URL only"):
        config_load.redis_url(Redis(url_file=str(tmp_path / "url"), ca_file=str(file)))
    found = load(
        tmp_path, changed("listen: 127.0.0.1:8080", f"redis: {{url: 'rediss://h', ca_file: {file}}}")
    )
    config_load.check_ca_files(found)
    file.write_text("none")
    with pytest.raises(ConfigErrors, match=r"redis\.ca_file: it holds no certificate"):
        config_load.check_ca_files(found)
    with pytest.raises(ConfigErrors, match=r"redis\.ca_file: it holds no certificate"):
        config_load.redis_url(found.redis)


def test_ca_files(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    found = load(tmp_path, changed("http://127.0.0.1:8002", f"https://gpu\n    ca_file: {file}"))
    config_load.check_ca_files(found)
    file.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigErrors, match=r"backends\[1\].ca_file: it holds no certificate in PEM form"):
        config_load.check_ca_files(found)
    file.unlink()
    with pytest.raises(ConfigErrors, match=r"backends\[1\].ca_file: cannot be read: No such file"):
        config_load.check_ca_files(found)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
10.0.0.1:/x /mnt/nfs nfs4 rw 0 0
/dev/sdb1 /mnt/nfs/local xfs rw 0 0
tmpfs /with\\040space tmpfs rw 0 0
short
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"), ("/mnt/nfs", "nfs4"), ("/mnt/nfs/a", "nfs4"), ("/mnt/nfs/local/a", "xfs"),
        ("/mnt/nfs-too", "ext4"), ("/with space/a", "tmpfs"), ("/", "ext4"),
    ],
)  # fmt: skip
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


def test_nothing_is_known_without_mounts() -> None:
    assert file_system("/x", "") == ""


def test_a_state_directory_on_nfs_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(config_load, "_MOUNTS", mounts)
    file = changed("listen: 127.0.0.1:8080", f"state_dir: {tmp_path}/not/there/yet")
    (found,) = mistakes(tmp_path, file)
    assert found.startswith("w.yaml:1: state_dir: is on nfs4: locks and fdatasync cannot be relied on")
    mounts.unlink()
    load(tmp_path, file)


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("redis://h", True), ("redis://h:1/0", True), ("rediss://u:p@h:1", True), ("unix:///s.sock", True),
        ("unix://", False), ("redis://", False), ("h:6379", False), ("redis://h:x", False), ("redis://[", False),
        ("unix:///s?db=1", True), ("rediss://h?ssl_cert_reqs=none&ssl_ca_certs=/ca.pem", True), ("redis://h/", True),
        ("unix:///s?db=z", False), ("redis://h/x", False), ("redis://h/0/1", False), ("redis://h?retry=3", False),
        ("redis://h?socket_timeout=abc", False), ("rediss://h?ssl_cert_reqs=no", False),
        ("rediss://h?ssl_check_hostname=maybe", False),
        ("redis://a:1,b:2,[::1]:3?cluster=true", True), ("rediss://u:p@a,b/0?cluster=true", True),
        ("redis://a?cluster=true", True), ("redis://a?cluster=false", True), ("redis://a:1,b:2", False),
        ("redis://a,?cluster=true", False), ("redis://a/1?cluster=true", False), ("redis://a?cluster=yes", False),
        ("unix:///s?cluster=true", False), ("redis://a:0", False), ("redis://a?cluster", False),
    ],
)  # fmt: skip
def test_urls_of_a_store(url: str, good: bool) -> None:
    assert (wrong_redis_url(url) is None) == good


PEERS = """\
audit:
  peers:
    - {url: "http://127.0.0.1:9001", key_file: FILE}
    - {url: "https://b.internal:9090", key_file: FILE, ca_file: FILE}
listen: 127.0.0.1:8080"""


def test_other_gateways(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.write_text("wb-secret\n")
    text = PEERS.replace("FILE", str(file))
    found = load(tmp_path, changed("listen: 127.0.0.1:8080", text))
    assert config_load.peer_keys(found) == {
        "http://127.0.0.1:9001": "wb-secret", "https://b.internal:9090": "wb-secret"
    }  # fmt: skip
    with pytest.raises(ConfigErrors, match=r"audit\.peers\[1\]\.ca_file: it holds no certificate"):
        config_load.check_ca_files(found)
    file.unlink()
    with pytest.raises(ConfigErrors, match=r"audit\.peers\[0\]\.key_file: cannot be read"):
        config_load.peer_keys(found)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("https://b.internal:9090", "http://127.0.0.1:9001", r"audit\.peers\[1\]\.url: is the same as"),
        ("https://b.internal:9090", "http://b", r"audit\.peers\[1\]\.ca_file: goes with an https url only"),
        ("http://127.0.0.1:9001", "ftp://b", r"audit\.peers\[0\]\.url: must be http"),
        (
            "http://127.0.0.1:9001",
            "http://b/audit",
            r"audit\.peers\[0\]\.url: must have nothing after the port",
        ),
    ],
)
def test_wrong_other_gateways(tmp_path: pathlib.Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigErrors, match=says):
        load(tmp_path, changed("listen: 127.0.0.1:8080", PEERS.replace(old, new)))


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("archive: /mnt/archive", None),
        ("archive: archive", None),
        ("archive: file:///mnt/archive", None),
        ("archive: s3://acme-journals/some/prefix", None),
        (
            "archive: s3://acme-journals\n  archive_endpoint: http://127.0.0.1:9000\n  archive_region: eu-west-1",
            None,
        ),
        ("archive: https://acme", "journal.archive: must be a path"),
        ("archive: file://mnt", "journal.archive: must have a whole path"),
        ("archive: s3://", "journal.archive: must name a bucket"),
        ("archive: s3://user:secret@bucket", "journal.archive: must name a bucket, and no user"),
        ("archive: s3://bucket?x=1", "journal.archive: must name a bucket"),
        ("archive: /mnt\n  archive_region: eu-west-1", "journal.archive_region: goes with an archive at s3"),
        ("archive_endpoint: http://h", "journal.archive_endpoint: goes with an archive at s3"),
        ("archive: s3://bucket\n  archive_endpoint: h:9000", "journal.archive_endpoint: must be http://host"),
        (
            "archive: s3://bucket\n  archive_endpoint: http://u:p@h",
            "journal.archive_endpoint: must be http://host",
        ),
        ("archive: s3://bucket\n  archive_lock: {mode: compliance, days: 400}", None),
        (
            "archive: s3://bucket\n  archive_lock: {mode: compliance, days: 399}",
            "journal.archive_lock.days: must not be below retention_days, 400",
        ),
        (
            "archive: /mnt\n  archive_lock: {mode: compliance, days: 400}",
            "journal.archive_lock: goes with an archive at s3",
        ),
    ],
)
def test_where_the_archive_is(tmp_path: pathlib.Path, lines: str, wrong: str | None) -> None:
    text = GOOD + f"\njournal:\n  {lines}\n"
    if wrong is None:
        assert load(tmp_path, text).journal.archive is not None
    else:
        (told,) = mistakes(tmp_path, text)
        assert wrong in told
        assert "secret" not in told


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("public_key: x25519:hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=", None),
        (
            "public_key: ed25519:hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=",
            "capture.public_key: must be",
        ),
        (
            f"public_key: x25519:{'A' * 43}=",
            "tenants[0].capture.public_key: is no key that anybody has the private half of",
        ),
        (
            "public_key: x25519:hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=, retention_days: 401",
            "tenants[0].capture.retention_days: must not be longer than that of the journal",
        ),
    ],
)
def test_whose_content_is_kept(tmp_path: pathlib.Path, lines: str, wrong: str | None) -> None:
    text = GOOD.replace("tenants:\n  - name: acme", f"tenants:\n  - capture: {{{lines}}}\n    name: acme")
    assert text != GOOD
    if wrong is None:
        assert load(tmp_path, text).tenants[0].capture is not None
    else:
        (told,) = mistakes(tmp_path, text)
        assert wrong in told


def test_the_profile_for_high_risk_keeps_logs_for_six_months(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, GOOD).retention_days == 400
    assert load(tmp_path, GOOD + "\nretention_days: 30\n").retention_days == 30
    assert load(tmp_path, GOOD + "\nprofile: eu-high-risk\nretention_days: 183\n").retention_days == 183
    assert load(tmp_path, GOOD + "\nprofile: eu-high-risk\n").retention_days == 400
    (told,) = mistakes(tmp_path, GOOD + "\nprofile: eu-high-risk\nretention_days: 182\n")
    assert told.startswith("w.yaml:31: retention_days: must be at least 183 with the profile eu-high-risk")


@pytest.mark.parametrize(("text", "on"), [("true", True), ("false", False)])
def test_a_switch(tmp_path: pathlib.Path, text: str, on: bool) -> None:
    found = load(tmp_path, changed("    projects", f"    digests: {text}\n    projects"))
    assert found.tenants[0].digests is on
    assert config.with_digests(found) == (["acme"] if on else [])


@pytest.mark.parametrize("text", ["yes", "1", '"true"', "on", "[]"])
def test_what_is_no_switch(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(ConfigErrors, match=r"tenants\[0\]\.digests: must be true or false"):
        load(tmp_path, changed("    projects", f"    digests: {text}\n    projects"))


def test_a_switch_from_the_environment(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, GOOD, env={"WEIGHBRIDGE_TENANTS__0__DIGESTS": "true"}).tenants[0].digests
