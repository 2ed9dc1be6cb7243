"""What users rely on stands in the reference pages, and the pages name nothing that does not exist."""

import argparse
import pathlib
import re
from collections.abc import Iterator

import msgspec
import pytest

from gateway import cli
from gateway.api import errors
from gateway.api.operations import ALL_OPERATIONS
from gateway.configuration import config_load
from gateway.configuration.config import Config
from metering import record
from metering.archive import facts
from metering.audit.findings import Verdict, What
from metering.cost.pricing import Unpriced
from metering.export import allocated_rows
from metering.export.export_manifest import ExportManifest, HourIn, JournalSeen, Made
from metering.export.focus import file_rules, row_rules, table
from metering.pages import board
from metering.pages.families import FAMILIES
from metering.pages.metrics import JOURNAL_HEAD_SEQ
from metering.usage import UsageSource
from tests.support.attacks import ATTACKS

ROOT = pathlib.Path(__file__).parent.parent
REFERENCE = ROOT / "deploy" / "reference"
EXAMPLE = REFERENCE / "weighbridge.example.yaml"
BEHIND = {"sql.md": "cost.md"}
"""How-to pages, and the page by which one comes to them."""


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def coded(text: str) -> set[str]:
    """What stands in backquotes."""
    return set(re.findall(r"`([^`\n]+)`", text))


def keys_of(type_: msgspec.inspect.Type, path: str) -> Iterator[str]:
    """Paths of all keys below a type, with [] for the items of a list."""
    match type_:
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                yield from keys_of(field.type, f"{path}.{field.name}" if path else field.name)
        case msgspec.inspect.UnionType(types=(msgspec.inspect.StructType() as one, *_)):
            yield from keys_of(one, path)
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.StructType() as item):
            yield from keys_of(item, f"{path}[]")
        case _:
            yield path


KEYS = sorted(keys_of(msgspec.inspect.type_info(Config), ""))


def commands(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that can be run, by its words."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield name, parser
    for action in inner:
        for word, below in action.choices.items():
            yield from commands(below, f"{name} {word}".strip())


COMMANDS = dict(commands(cli.parser()))
LINES = {kind: type_.__struct_fields__ for kind, type_ in record.KINDS.items()}
PARTS = {
    type_.__name__: type_.__struct_fields__
    for type_ in (
        record.Instance, record.LeftOut, record.Plan, record.Params, record.AttemptRecord, record.PriceBasis,
        record.Host, record.Usage, record.Entry, record.Capture,
    )
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_every_key_stands_in_the_configuration_page(key: str) -> None:
    assert key in coded(page("config.md"))


def test_the_configuration_page_names_no_key_that_does_not_exist() -> None:
    named = {
        word for word in coded(page("config.md")) if re.fullmatch(r"[a-z_]+(\[\])?(\.[a-z_]+(\[\])?)+", word)
    }
    known = set(KEYS) | {
        "tenants[].capture",
        "journal.archive_lock",
        "weighbridge.yaml",
        "models[].rate_cards[]",
        "models[].work_units[]",
    }
    abbreviated = {key.partition(".")[2] for key in KEYS}
    assert sorted(named - known - abbreviated) == []


def test_the_example_is_good_and_has_every_key() -> None:
    config = config_load.load(EXAMPLE, {})
    assert config.workers == 2
    text = EXAMPLE.read_text()
    missing = [key for key in KEYS if not re.search(rf"^[ #-]*{key.rpartition('.')[2]}:", text, re.MULTILINE)]
    assert missing == []


def test_the_examples_commented_keys_show_their_defaults(tmp_path: pathlib.Path) -> None:
    """Without their `#` they change nothing."""
    text = EXAMPLE.read_text()
    shown = re.sub(r"^( *)# ([a-z_]+: \S+.*)$", r"\1\2", text, flags=re.MULTILINE)
    shown = re.sub(r"^  url: redis://.*\n", "", shown, flags=re.MULTILINE)  # cannot stand beside url_file
    commented = set(re.findall(r"^ *# [a-z_]+: \S+.*$", text, re.MULTILINE))
    assert len(set(shown.splitlines()) - set(text.splitlines())) == len(commented) - 1  # without redis.url
    assert len(commented) > 30
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    assert config_load.load(file, {}) == config_load.load(EXAMPLE, {})


@pytest.mark.parametrize("name", ["CONFIG", "PORT", "STATE_DIR", "REDIS_URL"])
def test_every_variable_stands_in_the_configuration_page(name: str) -> None:
    assert f"WEIGHBRIDGE_{name}" in coded(page("config.md"))


@pytest.mark.parametrize("reason", list(Unpriced))
def test_every_reason_without_a_price_stands_there(reason: str) -> None:
    assert reason in coded(page("config.md"))
    assert reason in coded(page("metrics.md"))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_flag_stands_in_its_page(name: str) -> None:
    sections = dict(
        re.findall(r"^## ([a-z ]+)\n(.*?)(?=^## |\Z)", page("commands.md"), re.MULTILINE | re.DOTALL)
    )
    assert name in sections
    section = sections[name]
    assert f"`weighbridge {name}" in section
    for action in COMMANDS[name]._actions:
        for flag in action.option_strings:
            if flag not in ("-h", "--help"):
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", section), flag
        if not action.option_strings:
            assert str(action.metavar) in section
    known = {flag for action in COMMANDS[name]._actions for flag in action.option_strings}
    usage = section.strip().splitlines()[0]
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", usage)) <= known


def test_the_page_names_no_command_that_does_not_exist() -> None:
    assert set(re.findall(r"^## ([a-z ]+)$", page("commands.md"), re.MULTILINE)) == set(COMMANDS)


def test_every_metric_stands_in_its_page_and_no_other() -> None:
    known = {*FAMILIES, *board.GAUGES, JOURNAL_HEAD_SEQ}
    named = {word for word in coded(page("metrics.md")) if re.fullmatch(r"weighbridge_[a-z_]+", word)}
    assert sorted(known ^ named) == []


@pytest.mark.parametrize("kind", sorted(LINES | PARTS))
def test_every_field_of_the_journal_stands_in_its_page(kind: str) -> None:
    text = page("journal.md")
    missing = [field for field in (LINES | PARTS)[kind] if field not in coded(text)]
    assert missing == []
    assert kind in coded(text) or kind in PARTS


def test_every_column_of_the_facts_stands_in_the_journals_page() -> None:
    assert sorted({*facts.COLUMNS} - coded(page("journal.md"))) == []


@pytest.mark.parametrize("name", sorted(path.name for path in REFERENCE.iterdir()))
def test_the_readme_leads_to_each_page(name: str) -> None:
    if name in BEHIND:
        assert f"]({name})" in page(BEHIND[name])
        name = BEHIND[name]
    assert f"(deploy/reference/{name})" in (ROOT / "README.md").read_text()


def test_links_between_pages_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *REFERENCE.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def errors_below(type_: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for below in type_.__subclasses__():
        yield below
        yield from errors_below(below)


def test_every_error_code_stands_in_the_api_page_with_its_status() -> None:
    rows = dict(re.findall(r"^\| `?(\w+)`? \| ([0-9, ]+) \|", page("api.md"), re.MULTILINE))
    ours = {(error.code or "null", str(int(error.status))) for error in errors_below(errors.GatewayError)}
    assert {(code, status) for code, listed in rows.items() for status in listed.split(", ")} == ours


def test_every_operation_stands_on_the_page_with_its_paths_and_fields() -> None:
    rows = [line.split("|") for line in page("api.md").splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 6 and coded(row[2]) <= ALL_OPERATIONS.keys() and coded(row[2])]
    told = {path: (coded(row[1]), coded(row[3])) for row in rows for path in coded(row[2])}
    assert told.keys() == ALL_OPERATIONS.keys()
    for path, operation in ALL_OPERATIONS.items():
        assert operation.name in told[path][0]
        assert told[path][1] == operation.acted_on - {"model"}
    (names,) = [coded(line) for line in page("journal.md").splitlines() if line.startswith("| `operation` |")]
    assert names == {"operation"} | {operation.name for operation in ALL_OPERATIONS.values()}


def test_every_source_of_counts_stands_on_the_page() -> None:
    assert {source.value for source in UsageSource} <= coded(page("journal.md"))


@pytest.mark.parametrize("what", list(What))
def test_every_finding_stands_in_the_audit_page_with_its_verdict(what: What) -> None:
    rows = [line.split("|") for line in page("audit.md").splitlines() if line.startswith("| `")]
    assert [row[2].strip() for row in rows if len(row) == 5 and what in coded(row[1])] == [what.verdict]


def test_every_column_of_the_exports_stands_in_the_commands_page() -> None:
    ours = {name for name in table.header(None, is_split=True) if name.startswith("x_")}
    wanted = {*allocated_rows.COLUMNS, *ours, *ExportManifest.__struct_fields__, *Made.__struct_fields__}
    wanted |= {*HourIn.__struct_fields__, *JournalSeen.__struct_fields__} - {"v"}
    assert sorted(wanted - coded(page("commands.md")) - {"v"}) == []


@pytest.mark.parametrize("rule", [*row_rules.RULES, *file_rules.HEADER_RULES, *file_rules.ACROSS_RULES])
def test_every_rule_of_the_focus_check_stands_in_the_commands_page(rule: str) -> None:
    assert f"| `{rule}` | " in page("commands.md")


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_stands_in_the_audit_page_with_what_finds_it(name: str) -> None:
    attack = ATTACKS[name]
    (row,) = [line.split("|") for line in page("audit.md").splitlines() if line.startswith(f"| {name} |")]
    exits = {Verdict.TAMPERED: "1", Verdict.INCOMPLETE: "4"}
    assert attack.found in coded(row[2])
    assert exits[attack.verdict] in row[3]


def test_every_threat_has_a_test_that_is_there() -> None:
    rows = [line.rsplit("|", 2)[1] for line in page("security.md").splitlines() if line.startswith("| **")]
    assert len(rows) >= 9
    for row in rows:
        text = ""
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith(".py"):
                text = (ROOT / word).read_text()
            else:
                assert f"def {word.rstrip('…')}" in text, word
        assert text, row
