"""What a worker's process does not load: it is memory of each worker, and of use to other processes alone."""

import subprocess
import sys

import pytest

from tests.support.gateway import ROOT

OTHERS = {
    "yaml": "the configuration comes resolved",
    "duckdb": "facts are the clerk's",
    "obstore": "the archive is the clerk's",
    "gateway.configuration.config_yaml": "the configuration comes resolved",
    "gateway.faces.audit_answers": "questions of auditors are answered by a process of their own",
    "gateway.faces.finance_answers": "and those of finance",
    "gateway.duties.clerk": "the clerk's",
    "metering.audit.verify": "the clerk's",
    "metering.audit.inspection": "the clerk's",
    "metering.cost.closing": "the closer's",
    "metering.journal.sealing": "the clerk's",
}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    code = "import sys, gateway.processes.worker; print(*sys.modules, sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(found.stdout.split())


def test_a_worker_loads_itself(loaded: set[str]) -> None:
    assert {"gateway.processes.app", "metering.journal.recorder"} <= loaded


@pytest.mark.parametrize("module", OTHERS, ids=str)
def test_a_worker_does_not_load(loaded: set[str], module: str) -> None:
    assert module not in loaded, OTHERS[module]
