"""Hardware facts of EC2 instance types, from the shipped table and the configuration. Pure; prices are metering's.

`neuron_cores` are physical. On Trainium2 and 3 the runtime joins two of them to a logical core by
default (LNC=2), so a trn2.48xlarge shows 64 of its 128; Inferentia2 and Trainium1 have no LNC.
"""

import csv
import io
import re
from collections.abc import Mapping

import msgspec

_TRN3 = re.compile(r"^trn3")


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """One type. accelerators: chips or GPUs; neuron_cores: None for a GPU type."""

    name: str
    family: str
    accelerator: str
    accelerators: int
    neuron_cores: int | None

    @property
    def units_total(self) -> int:
        """What a backend owns a share of: NeuronCores, or GPUs."""
        return self.accelerators if self.neuron_cores is None else self.neuron_cores


Catalog = Mapping[str, InstanceType]
"""Instance types by name."""


def read_catalog(instances_csv: str) -> Catalog:
    """The table metering/data/instances.csv as types; `instances_csv` is its text."""
    rows = csv.DictReader(io.StringIO(instances_csv))
    return {
        row["instance_type"]: InstanceType(
            name=row["instance_type"],
            family=row["family"],
            accelerator=row["accelerator"],
            accelerators=int(row["accelerator_count"]),
            neuron_cores=int(row["neuron_cores"]) if row["neuron_cores"] else None,
        )
        for row in rows
    }


def known_family(instance_type: str, catalog: Catalog) -> str:
    """The family of an instance type: as the catalog has it, else by its name."""
    known = catalog.get(instance_type)
    return family_of(instance_type) if known is None else known.family


def family_of(instance_type: str) -> str:
    """The family of any instance type, known or not: what stands before the dot.

    SageMaker's "ml." goes off first. All trn3 types are one family: AWS has published no list of
    their names, and those that its driver knows (trn3p, trn3sn, trn3pd98, …) differ in form only.
    """
    family = instance_type.removeprefix("ml.").partition(".")[0]
    return "trn3" if _TRN3.match(family) else family
