"""What a model cost on two kinds of hardware."""

import dataclasses
from typing import Any

import msgspec
import pytest

from metering.cost import comparison
from metering.cost.amounts import Amounts, PriceUsed, Summary
from metering.cost.close_row import RowKind
from metering.cost.comparison import FIELDS, Side
from metering.record import Host

USD = 10**12


@dataclasses.dataclass
class Given:
    """What a side is made of."""

    price: PriceUsed
    host: Host
    sums: list[Summary]
    bases: list[str]

    def side(self) -> Side:
        return comparison.side(self.price.instance_type, self.sums, [self.price], [self.host], self.bases)


def given(instance_type: str = "inf2.48xlarge", *, cost: int = 40, **of_host: Any) -> Given:
    facts: dict[str, Any] = {
        "max_model_len": 4096,
        "slots": 32,
        "precision": "bf16",
        "neuron_version": "2.28.0",
        "tensor_parallel": 8,
    } | of_host
    return Given(
        price=PriceUsed(instance_type, 12_981_270, None, "us-east-1", "list", "2026-07-20", False, 100),
        host=Host(backend="a", identity_source="config", model="llama", served_model="llama", **facts),
        sums=[
            Summary(
                RowKind.TENANT,
                ("a",),
                Amounts(
                    micro_hours=25,
                    allocated_pusd=cost * USD // 4,
                    prompt_tokens=1_500_000,
                    completion_tokens=500_000,
                    calls=10,
                ),
            ),
            Summary(RowKind.IDLE, ("a",), Amounts(micro_hours=75, allocated_pusd=cost * USD * 3 // 4)),
        ],
        bases=["list"],
    )


def test_a_saving_is_said_where_all_of_both_sides_is_known() -> None:
    dear = given("g6e.12xlarge", cost=80, neuron_version=None, framework="vllm", framework_version="0.32.0")
    found = comparison.compare(given().side(), dear.side())
    assert (found.lacking, found.saving_ppm) == ((), 500_000)
    assert found.sides[0].per_mtok == 20 * USD
    assert found.sides[0].used_per_mtok == 5 * USD
    assert found.differing == {"SDK"}
    assert found.sides[1].facts["SDK"] == ("vllm 0.32.0",)
    assert found.sides[0].facts["utilisation"] == ("25.0 %",)
    assert comparison.compare(dear.side(), given().side()).saving_ppm == -1_000_000


@pytest.mark.parametrize("field", FIELDS)
def test_no_saving_is_said_if_one_thing_is_not_known(field: str) -> None:
    one = given()
    of_host = {"context": "max_model_len", "batch": "slots", "precision": "precision", "topology": "tensor_parallel",
               "SDK": "neuron_version"}  # fmt: skip
    of_price = {"region": "region", "price": "uusd_per_hour", "price date": "date"}
    if field in of_host:
        one.host = msgspec.structs.replace(one.host, **{of_host[field]: None})
    elif field in of_price:
        one.price = one.price._replace(**{of_price[field]: None})
    elif field == "basis":
        one.bases = ["list", "bill"]
    else:
        one.sums = [one.sums[0]._replace(amounts=Amounts(prompt_tokens=1, allocated_pusd=1))]
    found = comparison.compare(given().side(), one.side())
    assert found.saving_ppm is None
    assert any(field in reason for reason in found.lacking)
    assert comparison.compare(one.side(), given().side()).saving_ppm is None


def test_hours_without_a_price_and_hardware_without_a_token_are_not_compared() -> None:
    one = given()
    one.sums.append(Summary(RowKind.IDLE, ("a",), Amounts(micro_hours=1, unpriced_micro_hours=1)))
    assert comparison.compare(one.side(), given().side()).saving_ppm is None
    one = given()
    one.sums = one.sums[1:]
    found = comparison.compare(one.side(), given().side())
    assert (found.saving_ppm, found.sides[0].per_mtok) == (None, None)
    assert any("no token" in reason for reason in found.lacking)


def test_facts_of_other_servers_do_not_count() -> None:
    one = given()
    one.host = msgspec.structs.replace(one.host, backend="b")
    assert one.side().facts["context"] == ()
