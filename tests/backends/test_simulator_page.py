"""The page on the simulator names all that it serves, all that it can be made to do wrong, and all that it logs."""

import pathlib

import pytest

from backends.simulator.faults import Fault, Kind
from backends.simulator.log import Entry
from backends.simulator.server import APIS

PAGE = (pathlib.Path(__file__).parent.parent.parent / "deploy/reference/simulator.md").read_text()


@pytest.mark.parametrize("name", [*APIS, *Kind, *Fault.__struct_fields__, *Entry.__struct_fields__])
def test_it_stands_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f'"{name}"' in PAGE or f" {name}`" in PAGE
