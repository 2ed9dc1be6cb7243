"""How a gateway is started with one of its laws broken on purpose (tests/mutants)."""

import os

from tests.support.gateway import ROOT


def environment(name: str) -> dict[str, str]:
    """The environment in which the break of this name is on (tests/mutants/mutations.py)."""
    return {"PYTHONPATH": f"{ROOT / 'tests' / 'mutants'}{os.pathsep}{ROOT}", "KILL_TEST_MUTANT": name}
