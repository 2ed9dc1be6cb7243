"""What can be wrong with tenants, their keys and their limits. Pure.

Of the configuration's and of the directory's alike: `path` is where a mistake is told, "" of a thing that stands alone.
"""

import ipaddress
from collections.abc import Callable, Collection, Sequence

from gateway.api.auth import key_id
from gateway.api.operations import ALL_OPERATIONS
from gateway.configuration.config import Budget, Key, LimitSet, Tenant
from gateway.configuration.config_shape import did_you_mean
from metering.periods import parse_instant
from metering.units import PICO_USD_PER_USD, usd_to

Report = Callable[[str, str], None]
"""Names a mistake: path, message."""

TAGS_BYTES_MAX = 4096
"""They stand in each record, which is bounded."""
BUDGET_USD_MAX = 4_000_000
"""A balance is at most 4·10¹⁸ picodollars: a larger budget could never be reached (metering/ledger/ledger.py)."""
BUDGETS_MAX = 8
THRESHOLDS_MAX = 8
_ENDPOINTS = frozenset(operation.name for operation in ALL_OPERATIONS.values())


def check_tenants(tenants: Sequence[Tenant], models: Collection[str], report: Report) -> None:
    """Name every mistake in a configuration's tenants. models: ids of what is served."""
    check_once(report, "tenants", [tenant.name for tenant in tenants], "name")
    key_paths: dict[str, str] = {}
    for index, tenant in enumerate(tenants):
        path = f"tenants[{index}]"
        check_tenant(path, tenant, models, report)
        for number, key in enumerate(tenant.keys):
            here = f"{path}.keys[{number}]"
            check_key(here, key, tenant, models, report)
            other = key_paths.setdefault(key_id(key.hash), here)
            if other != here:
                report(f"{here}.hash", f"is the same key as {other}")


def check_tenant(path: str, tenant: Tenant, models: Collection[str], report: Report) -> None:
    """Name every mistake in one tenant, but for those in its keys."""
    check_once(report, f"{path}.projects", tenant.projects)
    if sum(len(name) + len(value.encode()) for name, value in tenant.tags.items()) > TAGS_BYTES_MAX:
        report(f"{path}.tags", f"must have at most {TAGS_BYTES_MAX} bytes, all together")
    check_limits(f"{path}.limits", tenant.limits, report)
    for kind, limits, known in (
        ("model", tenant.model_limits, models),
        ("project", tenant.project_limits, tenant.projects),
    ):
        for name, limit in limits.items():
            here = f"{path}.{kind}_limits.{name}"
            _check_known(here, kind, name, known, report)
            check_limits(here, limit, report)


def check_key(path: str, key: Key, tenant: Tenant, models: Collection[str], report: Report) -> None:
    """Name every mistake in one key of this tenant."""
    check_once(report, f"{path}.scopes", key.scopes)
    if key.project is not None:
        _check_known(f"{path}.project", "project", key.project, tenant.projects, report)
    check_limits(f"{path}.limits", key.limits, report)
    for kind, names, known in (("model", key.models, models), ("endpoint", key.endpoints, _ENDPOINTS)):
        check_once(report, f"{path}.{kind}s", names or ())
        for index, name in enumerate(names or ()):
            _check_known(f"{path}.{kind}s[{index}]", kind, name, known, report)
    check_networks(f"{path}.networks", key.networks or (), report)
    if key.expires is not None:
        try:
            parse_instant(key.expires)
        except ValueError as error:
            report(f"{path}.expires", str(error))


def check_networks(path: str, networks: Sequence[str], report: Report) -> None:
    """Name what is no network."""
    check_once(report, path, networks)
    for index, network in enumerate(networks):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            report(f"{path}[{index}]", f'{error}; write a network, as in "10.0.0.0/8", or an address')


def check_limits(path: str, limits: LimitSet, report: Report) -> None:
    """Name every mistake in the limits of one scope."""
    if len(limits.budgets) > BUDGETS_MAX:
        report(f"{path}.budgets", f"must have at most {BUDGETS_MAX} items")
    check_once(report, f"{path}.budgets", [(budget.per, budget.hard) for budget in limits.budgets])
    for index, budget in enumerate(limits.budgets):
        _check_budget(f"{path}.budgets[{index}]", budget, report)


def _check_budget(path: str, budget: Budget, report: Report) -> None:
    try:
        amount = usd_to(budget.usd, PICO_USD_PER_USD)
    except ValueError as error:
        report(f"{path}.usd", str(error))
    else:
        if amount == 0:
            report(f"{path}.usd", "must be above 0")
        elif amount > BUDGET_USD_MAX * PICO_USD_PER_USD:
            report(f"{path}.usd", f"must be at most {BUDGET_USD_MAX} USD, the largest sum of the ledger")
    check_once(report, f"{path}.thresholds", budget.thresholds)
    if len(budget.thresholds) > THRESHOLDS_MAX:
        report(f"{path}.thresholds", f"must have at most {THRESHOLDS_MAX} items")


def check_once(report: Report, path: str, values: Sequence[object], key: str = "") -> None:
    """No value may stand twice in a list; the second one is the mistake."""
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value in first:
            here = f"{path}[{index}]" + (f".{key}" if key else "")
            report(here, f"is the same as {path}[{first[value]}]")
        first.setdefault(value, index)


def _check_known(path: str, kind: str, name: str, known: Collection[str], report: Report) -> None:
    if name not in known:
        report(path, f"there is no {kind} {name}" + did_you_mean(name, sorted(known)))
