"""What a statement is made of, gathered from the closed hours of its month and the one before."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from metering.cost import month_report, month_sums, summaries
from metering.cost.amounts import Summary, total
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_manifest import BILL, Manifest, hour_text, month_hours, month_of
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes
from metering.cost.pricing import RateCard
from metering.export import export_manifest, selection
from metering.export.export_parts import Correction, Part
from metering.export.selection import Selection
from metering.export.statement.statement import (
    DIMENSIONS,
    Corrected,
    Made,
    Statement,
    charge,
    rolled_up,
)
from metering.periods import instant_text


def gather(
    closes: Closes, *, tenant: str, month: str, terms: ChargeTerms, created_ns: int
) -> Statement | None:
    """A tenant's month; None: it has no row in it. terms: of months that have not kept their own.

    Raises ValueError: that is no month; ArchiveError, CloseFileError, OSError.
    """
    found = selection.select(closes, month_hours(month))
    own = [part for part in found.parts if part.correction is None]
    use = _of(tenant, summaries.summarise(closes, own, DIMENSIONS))
    corrections = tuple(_corrections(closes, found, tenant, terms))
    if not use and not corrections:
        return None
    terms = _kept(found, month, terms)
    models = {model for (model,) in rolled_up(use, ["model"])}
    types = {name for (name,) in rolled_up(use, ["instance_type"])}
    hardware = types | {family for (family,) in rolled_up(use, ["family"])}
    return Statement(
        account=terms.account,
        cards=tuple(_cards(terms, month, models, hardware)),
        changes=_changes(closes, tenant, month, use),
        charged_by=terms.chargeback,
        corrections=corrections,
        issuer=terms.issuer,
        made=_made(found, own, created_ns),
        month=month,
        pools=tuple(one for one in month_sums.waterfalls(closes, own) if one.pool in models),
        prices=tuple(one for one in summaries.prices_used(closes, own) if one.instance_type in types),
        state=found.months[month],
        tenant=tenant,
        use=tuple(use),
    )


def _of(tenant: str, sums: Iterable[Summary]) -> list[Summary]:
    """Those of this tenant, without it in the key."""
    return [one._replace(key=one.key[1:]) for one in sums if one.key[0] == tenant]


def _kept(found: Selection, month: str, terms: ChargeTerms) -> ChargeTerms:
    own = found.closed[month].terms if month in found.closed else None
    return terms if own is None else own


def _corrections(closes: Closes, found: Selection, tenant: str, terms: ChargeTerms) -> Iterable[Corrected]:
    """Of each closed month that was corrected in this one, if that changes what this tenant is charged."""
    months: dict[str, list[Part]] = {}
    for part in found.parts:
        if part.correction is not None:
            months.setdefault(month_of(part.manifest.hour), []).append(part)
    for month, parts in sorted(months.items()):
        by = _kept(found, month, terms).chargeback
        taken_back, restated = (
            _charged(closes, [part for part in parts if part.correction is correction], tenant, by)
            for correction in (Correction.REVERSAL, Correction.RESTATED)
        )
        if taken_back + restated:
            yield Corrected(
                month=month,
                charged_by=by,
                hours=len({part.manifest.hour for part in parts}),
                taken_back_pusd=-taken_back,
                restated_pusd=restated,
            )


def _charged(closes: Closes, parts: Sequence[Part], tenant: str, by: Charged) -> int:
    sums = _of(tenant, summaries.summarise(closes, parts, ["tenant"]))
    calls, shared = (total(sums, kind) for kind in (RowKind.TENANT, RowKind.SHARED_COST))
    return charge(calls, by) + shared.allocated_pusd


def _changes(
    closes: Closes, tenant: str, month: str, use: Sequence[Summary]
) -> tuple[month_report.Line, ...] | None:
    """Beside the month before, without what either corrects."""
    earlier = selection.select(closes, month_hours(month_of(month_hours(month).start - 1)))
    parts = [part for part in earlier.parts if part.correction is None]
    before = _of(tenant, summaries.summarise(closes, parts, ["tenant", "model", "family"]))
    if not any(one.kind is RowKind.TENANT for one in before):
        return None
    now = [
        Summary(RowKind.TENANT, key, amounts) for key, amounts in rolled_up(use, ["model", "family"]).items()
    ]
    return tuple(month_report.tenant_lines(now, before))


def _cards(
    terms: ChargeTerms, month: str, models: set[str | None], hardware: set[str | None]
) -> Iterable[RateCard]:
    for card in terms.during(month_hours(month)).cards:
        if card.model in models and card.hardware in hardware:
            yield card


def _made(found: Selection, own: Sequence[Part], created_ns: int) -> Made:
    manifests: list[Manifest] = [part.manifest for part in own]
    digest = hashlib.sha256()
    for part in found.parts:
        one = part.manifest
        digest.update(f"{hour_text(one.hour)} {one.revision} {one.rows.sha256}\n".encode())
    different = export_manifest.different
    return Made(
        created=instant_text(created_ns),
        hours=len(found.period),
        hours_billed=sum(one.basis.startswith(BILL) for one in manifests),
        hours_closed=len(manifests),
        methods=different(one.method for one in manifests),
        missing=different(writer for one in manifests for writer in one.missing),
        not_closed=export_manifest.spans(found.not_closed),
        revisions=dict(sorted(Counter(one.revision for one in manifests).items())),
        rows_sha256=digest.hexdigest(),
        sharing=different(one.sharing for one in manifests),
        simulated=different(type_ for one in manifests for type_ in one.simulated),
        unpriced=found.unpriced,
    )
