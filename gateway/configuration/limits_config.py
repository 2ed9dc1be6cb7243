"""From the configuration to limits. Pure."""

from collections.abc import Iterable

from gateway.api.auth import key_id
from gateway.configuration.config import LimitSet, Tenant
from metering.journal import events
from metering.journal.events import Happening
from metering.limits.desk import Passed
from metering.limits.terms import BudgetTerms, TenantTerms, Terms
from metering.units import PICO_USD_PER_USD, usd_text, usd_to


def tenant_terms(tenants: Iterable[Tenant]) -> dict[str, TenantTerms]:
    """The limits of tenants that were checked, by tenant; of those alone that have any."""
    found = {tenant.name: _terms_of(tenant) for tenant in tenants}
    return {name: terms for name, terms in found.items() if terms.any}


def threshold(passed: Passed) -> Happening:
    """What the journal tells of a threshold that was passed."""
    return events.budget_passed(
        tenant=passed.tenant,
        scope=passed.scope,
        window=passed.window,
        budget=usd_text(passed.budget.pusd),
        hard=passed.budget.hard,
        percent=passed.percent,
        spent=usd_text(passed.spent_pusd),
    )


def _terms_of(tenant: Tenant) -> TenantTerms:
    return TenantTerms(
        own=_terms(tenant.limits),
        keys={key_id(key.hash): terms for key in tenant.keys if (terms := _terms(key.limits)).any},
        projects={name: _terms(limits) for name, limits in tenant.project_limits.items()},
        models={name: _terms(limits) for name, limits in tenant.model_limits.items()},
        policy=tenant.store_policy,
    )


def _terms(limits: LimitSet) -> Terms:
    return Terms(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        budgets=tuple(
            BudgetTerms(
                pusd=usd_to(budget.usd, PICO_USD_PER_USD),
                per=budget.per,
                hard=budget.hard,
                thresholds=budget.thresholds,
            )
            for budget in limits.budgets
        ),
    )
