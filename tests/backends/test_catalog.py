"""The hardware facts of the shipped table."""

import pathlib

import pytest

from backends.catalog import family_of, read_catalog

CATALOG = read_catalog(
    (pathlib.Path(__file__).parent.parent.parent / "metering/data/instances.csv").read_text()
)


@pytest.mark.parametrize(
    ("name", "family", "accelerator", "units_total"),
    [
        ("inf2.48xlarge", "inf2", "inferentia2", 24),
        ("trn1.32xlarge", "trn1", "trainium", 32),
        ("trn1n.32xlarge", "trn1n", "trainium", 32),
        ("trn2.48xlarge", "trn2", "trainium2", 128),  # physical; 64 logical ones by default
        ("g6e.48xlarge", "g6e", "nvidia-l40s", 8),
        ("p6-b200.48xlarge", "p6-b200", "nvidia-b200", 8),
    ],
)
def test_known_types(name: str, family: str, accelerator: str, units_total: int) -> None:
    found = CATALOG[name]
    assert (found.family, found.accelerator, found.units_total) == (family, accelerator, units_total)


def test_gpus_have_no_neuron_cores() -> None:
    assert CATALOG["g5.xlarge"].neuron_cores is None
    assert CATALOG["inf2.xlarge"].neuron_cores == 2


def test_the_family_of_a_known_type_is_that_of_the_table() -> None:
    for name, found in CATALOG.items():
        if "." in name:  # UltraServers stand in the table, and are no instance types
            assert family_of(name) == found.family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("inf3.48xlarge", "inf3"),  # not made yet
        ("trn3.48xlarge", "trn3"),
        ("trn3pd98.3xlarge", "trn3"),
        ("trn3s-es.48xlarge", "trn3"),
        ("ml.inf2.48xlarge", "inf2"),  # SageMaker
        ("workstation", "workstation"),
    ],
)
def test_the_family_of_any_type(name: str, family: str) -> None:
    assert family_of(name) == family
