"""What is known of the hardware and software behind a backend, as one `identity` line says it. Pure."""

import hashlib

import msgspec

from backends.catalog import Catalog, InstanceType, known_family
from backends.model import Backend
from metering.record import Host, Instance


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of a model; `id` is its name in records."""

    id: str
    logging_policy: str | None = None
    owner: str | None = None
    storage_location: str | None = None
    vendor: str | None = None


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What the server itself answered: GET /version and /v1/models. None: not asked yet, or not said."""

    framework: str | None = None
    framework_version: str | None = None
    max_model_len: int | None = None
    simulated: bool = False


def host(backend: Backend, model: ModelFacts, catalog: Catalog, probed: Probed) -> Host:
    """The facts of `backend` as it serves `model`.

    Who says so (`identity_source`) is the configuration once it names the instance type. A share of
    an instance that the configuration does not give is all of it; a configured length wins.
    """
    known = catalog.get(backend.instance_type) if backend.instance_type else None
    shares = instances(backend, catalog)
    return Host(
        accelerator=known.accelerator if known else None,
        account=backend.account,
        az=backend.az,
        backend=backend.name,
        cores=_cores(shares, known),
        framework=probed.framework,
        framework_version=probed.framework_version,
        identity_source="config" if backend.instance_type else "unknown",
        instance_family=known_family(backend.instance_type, catalog) if backend.instance_type else None,
        instances=shares,
        logging_policy=model.logging_policy,
        max_model_len=backend.max_model_len or probed.max_model_len,
        model=model.id,
        neuron_version=backend.neuron_version,
        owner=model.owner,
        precision=backend.precision,
        purchase_option=backend.purchase_option,
        region=backend.region,
        served_model=backend.model,
        simulated=probed.simulated,
        slots=backend.slots,
        storage_location=model.storage_location,
        tensor_parallel=backend.tensor_parallel,
        vendor=model.vendor,
    )


def digest(facts: Host) -> str:
    """ "sha256:…" of the facts as canonical JSON; it stands in each record that they hold for."""
    return "sha256:" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def instances(backend: Backend, catalog: Catalog) -> tuple[Instance, ...]:
    """What it has of which instance: all of it, if the configuration does not say; nothing, if that names none."""
    if backend.instance_type is None and backend.instance_id is None:
        return ()
    known = catalog.get(backend.instance_type) if backend.instance_type else None
    units_total = backend.units_total or (known.units_total if known else None)
    return (
        Instance(
            id=backend.instance_id,
            type=backend.instance_type,
            units=backend.units or units_total,
            units_total=units_total,
        ),
    )


def _cores(shares: tuple[Instance, ...], known: InstanceType | None) -> int | None:
    """Physical NeuronCores that the backend owns; the units may be logical ones, the ratio is the same."""
    if known is None or known.neuron_cores is None:
        return None
    (share,) = shares
    assert share.units is not None
    assert share.units_total is not None
    cores, rest = divmod(known.neuron_cores * share.units, share.units_total)
    return None if rest else cores
