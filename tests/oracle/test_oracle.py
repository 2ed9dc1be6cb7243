"""The outside judge itself: that it is outside, and its readers."""

import ast
import pathlib
import sys

import pytest

from tests.oracle import exposition
from tests.oracle.exposition import Watch
from tests.oracle.faults import Kind

PAGE = """\
# HELP weighbridge_calls_total Calls.
# TYPE weighbridge_calls_total counter
weighbridge_calls_total{tenant="a",model="x\\"y\\\\z\\n"} 3.0
# TYPE weighbridge_in_flight gauge
weighbridge_in_flight{backend="b"} 2.0
# TYPE weighbridge_overhead_seconds histogram
weighbridge_overhead_seconds_bucket{le="0.5"} 1.0
weighbridge_overhead_seconds_count 1.0
weighbridge_overhead_seconds_sum 0.25
"""


@pytest.mark.parametrize(
    "path", sorted(pathlib.Path(__file__).parent.glob("[!t]*.py")), ids=lambda path: path.name
)
def test_it_imports_the_standard_library_and_itself(path: pathlib.Path) -> None:
    allowed = sys.stdlib_module_names | ({"zstandard"} if path.name == "files.py" else set())
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            assert name is not None
            assert name.startswith("tests.oracle") or name.partition(".")[0] in allowed


def test_a_page_is_read_with_its_labels_and_kinds() -> None:
    page = exposition.parse(PAGE)
    assert page.counters == {
        ("weighbridge_calls_total", (("model", 'x"y\\z\n'), ("tenant", "a"))): 3.0,
        ("weighbridge_overhead_seconds_bucket", (("le", "0.5"),)): 1.0,
        ("weighbridge_overhead_seconds_count", ()): 1.0,
        ("weighbridge_overhead_seconds_sum", ()): 0.25,
    }
    assert page.others == {("weighbridge_in_flight", (("backend", "b"),)): 2.0}


@pytest.mark.parametrize("text", ["nonsense", 'a{b="1",c} 2', 'a{b="1" 2'])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        exposition.parse(text)


@pytest.mark.parametrize(
    ("then", "fell"),
    [
        (PAGE, []),
        (PAGE.replace(" 3.0", " 4.0"), []),
        (PAGE.replace('"b"} 2.0', '"b"} 0.0'), []),
        (PAGE.replace(" 3.0", " 2.0"), ["weighbridge_calls_total"]),
        (PAGE.replace("_bucket", "_other"), ["weighbridge_overhead_seconds_bucket"]),
        (PAGE.replace("sum 0.25", "sum 0.125"), ["weighbridge_overhead_seconds_sum"]),
    ],
)
def test_a_counter_that_falls_or_goes_is_seen(then: str, fell: list[str]) -> None:
    watch = Watch()
    watch.look(PAGE)
    watch.look(then)
    assert [fault.where.partition("{")[0] for fault in watch.faults] == fell
    assert {fault.kind for fault in watch.faults} <= {Kind.COUNTER_FELL}
