"""Fixtures that every test may use; shared code is in tests/support."""

import os
import pathlib
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

IN_CI = os.environ.pop("WEIGHBRIDGE_CI", "") == "1"  # taken out: the gateways under test are not to see it

# How long an example takes, or is drawn, tells of the machine: what else runs there, and how many tests at once.
settings.register_profile("weighbridge", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weighbridge")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything that Debian ships is there: a `debian` test that is skipped has failed."""
    report = yield
    if IN_CI and report.skipped and item.get_closest_marker("debian") and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report
