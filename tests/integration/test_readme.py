"""The README keeps its word: what it shows of the demo is what the demo prints, and its commands can be run."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway import cli
from tests.support.gateway import ROOT, eventually

pytestmark = pytest.mark.integration

README = (ROOT / "README.md").read_text(encoding="utf-8")
READY_S = 60.0

# What differs from one demo to the next: ids, keys, ports, and who of the two Neuron servers took a call.
_VARIES = (
    (re.compile(r"\bw[a-z2-7]{16}-"), "<writer>-"),
    (re.compile(r"\bkey [0-9a-f]{12}\b"), "key <id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"^(globex|initech|sum)( +\d+ +\d+) +\(\d+\)( +\d+) .*"), r"\1\2 (<cached>)\3 <served>"),
)


def normal(line: str) -> str:
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return line.rstrip()


def blocks(kind: str) -> list[str]:
    """Code blocks of a kind, without their fences."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def loosely(shown: str) -> "re.Pattern[str]":
    """A shown line as a pattern: … stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in normal(shown).split("…")))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The lines of a demo in a fresh directory, up to `ready`."""
    directory = tmp_path_factory.mktemp("readme")
    out = directory / "out"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHBRIDGE_")}
    with out.open("wb") as file, (directory / "log").open("wb") as log:
        demo = subprocess.Popen(
            [pathlib.Path(sys.executable).with_name("weighbridge"), "demo", "--port", "0"],
            cwd=directory, env=environment, stdout=file, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(
            lambda: "\nready: " in out.read_text() or demo.poll() is not None, within_s=READY_S, every_s=0.1
        )
        assert demo.poll() is None, (directory / "log").read_text()
        yield [normal(line) for line in out.read_text().splitlines()]
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGINT)
        demo.wait(40)


def missing(shown: list[str], printed: list[str]) -> str | None:
    """The first shown line that does not come in its turn."""
    rest = iter(printed)
    for line in shown:
        if line.strip("… ") and not any(loosely(line).fullmatch(one) for one in rest):
            return line
    return None


def test_the_shown_output_of_the_demo_is_what_it_prints(printed: list[str]) -> None:
    (block,) = (block for block in blocks("console") if block.startswith("$ make demo\n"))
    shown = block.splitlines()[1:]
    assert len(shown) > 10
    assert missing(shown, printed) is None
    assert (normal(shown[0]), normal(shown[-1]).partition("=")[0]) == (printed[0], "ready: base_url")
    assert loosely(shown[-1]).fullmatch(printed[-1])
    assert missing(list(reversed(shown)), printed) is not None  # the judge does judge


def test_the_shown_ticket_is_what_the_demo_prints(printed: list[str]) -> None:
    ticket = blocks("")[0].splitlines()
    assert any(line.startswith("cost      $") for line in ticket)
    assert missing(ticket, printed) is None
    one_more = [re.sub(r"(cost +\$[0-9.]*)0 ", r"\g<1>1 ", line) for line in ticket]
    assert missing(one_more, printed) == next(line for line in one_more if line.startswith("cost"))


def test_the_demo_names_commands_that_show_its_data(printed: list[str]) -> None:
    for label in ("audit", "export", "close", "report"):
        (line,) = (line for line in printed if line.startswith(f"{label} "))
        assert_parses(shlex.split(line)[1:])


def quoted() -> list[str]:
    """Shell commands of the README: lines after $, and code that begins with a program's name."""
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    begins = r"(?:[A-Z_]+=\S+ )?(?:weighbridge|make|curl|python|pip) "
    return lines + [code for code in re.findall(r"`([^`\n]+)`", prose) if re.match(begins, code)]


def assert_parses(words: list[str]) -> None:
    name, *arguments = words
    assert pathlib.Path(name).name == "weighbridge"
    assert cli.parser().parse_args(arguments).run is not None


@pytest.mark.parametrize("command", quoted())
def test_a_command_of_the_readme_can_be_run(command: str) -> None:
    subprocess.run(["bash", "-n", "-c", command], check=True)
    words = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
    match words:
        case ["weighbridge", *_]:
            assert_parses(words)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
        case ["python", "-m", module, *_]:
            assert (ROOT / (module.replace(".", "/") + ".py")).exists()
        case [".", path]:
            assert path == ".venv/bin/activate"
        case _:
            assert words[0] in ("curl", "pip")


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) < 200
    local = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert local
    assert [link for link in local if not leads_somewhere(link)] == []


def leads_somewhere(link: str) -> bool:
    """Is there such a file, with such a heading if one is named?"""
    name, _, heading = link.partition("#")
    if not (ROOT / name).exists():
        return False
    titles = re.findall(r"^#+ (.*)$", (ROOT / name).read_text("utf-8"), re.MULTILINE) if heading else []
    slugs = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    return not heading or heading in slugs
