"""Checks of what the configuration says of instances: when they are paid for, and who shares one. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from backends import identity
from backends.catalog import Catalog
from backends.model import Backend
from metering import periods
from metering.cost import schedule
from metering.cost.price_book import ON_DEMAND

Report = Callable[[str, str], None]
"""Names a mistake: path, message."""

OF_THE_INSTANCE = (
    "instance_type", "units_total", "account", "region", "az", "billed", "launched", "terminated",
    "purchase_option",
)  # fmt: skip
"""Keys of a backend that are about its instance: backends that share one must say the same."""


def check(backends: Sequence[Backend], catalog: Catalog, report: Report) -> None:
    """Name every mistake."""
    for index, backend in enumerate(backends):
        _check_times(f"backends[{index}]", backend, report)
    first: dict[str, int] = {}
    for index, backend in enumerate(backends):
        if backend.instance_id is None:
            continue
        other = first.setdefault(backend.instance_id, index)
        said, before = _said(backend, catalog), _said(backends[other], catalog)
        different = [key for key in OF_THE_INSTANCE if said[key] != before[key]]
        if "instance_type" in different and "units_total" in different:
            different.remove("units_total")  # each is right of its own type
        for key in different:
            message = f"is not what backends[{other}] says of the same instance, {backend.instance_id}"
            report(f"backends[{index}].{key}", message)


def _said(backend: Backend, catalog: Catalog) -> dict[str, object]:
    """What a backend says of its instance; what it leaves to a default as what that is."""
    (share,) = identity.instances(backend, catalog)
    return {key: getattr(backend, key) for key in OF_THE_INSTANCE} | {
        "units_total": share.units_total,
        "purchase_option": backend.purchase_option or ON_DEMAND,
    }


def notes(backends: Sequence[Backend], catalog: Catalog) -> Iterator[str]:
    """What is likely not meant: shares of instances that do not fit together."""
    claimed: dict[str, list[Backend]] = defaultdict(list)
    for backend in backends:
        for share in identity.instances(backend, catalog):
            if share.units is None or share.units_total is None:
                continue
            if backend.instance_id is not None:
                claimed[backend.instance_id].append(backend)
            elif share.units < share.units_total:
                rest = share.units_total - share.units
                yield (
                    f"{backend.name} owns {share.units} of {share.units_total} units of an instance that is not named: "
                    f"it is paid for as one of its own, with {rest} units stranded; give instance_id"
                )
    for instance_id, sharing in claimed.items():
        shares = [share for backend in sharing for share in identity.instances(backend, catalog)]
        units, total = (
            sum(share.units or 0 for share in shares),
            max(share.units_total or 0 for share in shares),
        )
        if units > total:
            names = ", ".join(backend.name for backend in sharing)
            yield f"{names} claim {units} units of {instance_id}, which has {total}: each is charged for less"


def _check_times(path: str, backend: Backend, report: Report) -> None:
    try:
        schedule.parse(backend.billed)
    except ValueError as error:
        report(f"{path}.billed", str(error))
    times = {}
    for key in ("launched", "terminated"):
        text: str | None = getattr(backend, key)
        try:
            times[key] = None if text is None else periods.parse_instant(text)
        except ValueError as error:
            report(f"{path}.{key}", str(error))
    launched, terminated = times.get("launched"), times.get("terminated")
    if launched is not None and terminated is not None and terminated <= launched:
        report(f"{path}.terminated", "is not after launched")
