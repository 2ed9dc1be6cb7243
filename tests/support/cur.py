"""A month's bill of AWS, made up: of a fleet of accelerators, and of other things. It imports nothing of ours.

The same charges are written as CUR 2.0 and as FOCUS. What they come to is known from how they were made: `cost` has
each (instance, hour), in picodollars, from whole multiples of 10⁻¹⁰ USD.
"""

import csv
import dataclasses
import datetime
import gzip
import io
import pathlib
from collections.abc import Iterable, Sequence

TEN_PLACES = 10**10
PUSD_PER_PART = 100  # of 10⁻¹⁰ USD
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
PAYER = "111111111111"
PREFIXES = {"us-east-1": "", "us-east-2": "USE2-", "us-west-2": "USW2-"}


@dataclasses.dataclass(frozen=True)
class Instance:
    """option: how it is paid for. rate: public price per hour, in parts of 10⁻¹⁰ USD. hours: of the month, it ran."""

    id: str
    type: str
    region: str
    option: str
    rate: int
    hours: range
    account: str = "222222222222"

    @property
    def usage_type(self) -> str:
        word = "SpotUsage" if self.option == "spot" else "BoxUsage"
        return f"{PREFIXES[self.region]}{word}:{self.type}"


@dataclasses.dataclass
class Charge:
    """A row of the bill, whatever its format. Amounts in parts of 10⁻¹⁰ USD; hours of the month."""

    line_type: str
    start: int
    end: int
    cost: int
    effective: int
    usage_type: str = ""
    instance_type: str = ""
    resource: str = ""
    region: str = "us-east-1"
    account: str = "222222222222"
    quantity: int = TEN_PLACES
    rate: int | None = None
    reservation: str = ""
    plan: str = ""
    plan_family: str = ""
    plan_total: int = 0
    plan_used: int = 0
    unused_upfront: int = 0
    unused_recurring: int = 0
    capacity: str = ""
    split_of: str = ""
    product: str = "AmazonEC2"
    id: str = ""


def month_hours(month: str) -> range:
    """Hours since 1970."""
    start = datetime.datetime.fromisoformat(f"{month}-01").replace(tzinfo=datetime.UTC)
    end = (start + datetime.timedelta(days=32)).replace(day=1)
    return range(*(int((one - EPOCH) / datetime.timedelta(hours=1)) for one in (start, end)))


class Bill:
    """Charges of a month, in the order in which they were made. first: the hour of the month at which they begin.

    start: that hour, since 1970; hours of charges and instances count from it.
    """

    def __init__(
        self, month: str = "2026-11", instances: int = 40, hours: int | None = None, first: int = 0
    ) -> None:
        self.month = month
        self.span = month_hours(month)
        self.start = self.span.start + first
        self.count = len(self.span) if hours is None else hours
        self.charges: list[Charge] = []
        self.cost: dict[tuple[str, int], int] = {}
        self.reserved = 0
        self.fleet = [self._instance(number) for number in range(instances)]
        for instance in self.fleet:
            self._run(instance)
        self._commitments()
        self._elsewhere()
        for number, charge in enumerate(self.charges):
            charge.id = charge.id or f"line{number:08d}"

    @property
    def total(self) -> int:
        """Picodollars of all that was used, and of what was reserved and not used."""
        return sum(self.cost.values()) + self.reserved

    def _instance(self, number: int) -> Instance:
        kinds = (
            ("inf2.48xlarge", "us-east-1", "on-demand", 129_812_700_000),
            ("inf2.24xlarge", "us-east-1", "spot", 64_906_300_000),
            ("inf2.48xlarge", "us-east-2", "reserved", 129_812_700_000),
            ("trn1.32xlarge", "us-west-2", "savings-plan", 215_000_000_000),
        )
        kind = kinds[number % 4]
        first = number % 5 * (self.count // 16)  # some come later, some go earlier
        last = self.count - number % 3 * (self.count // 12)
        return Instance(f"i-{number:017x}", *kind, range(first, last))

    def _run(self, instance: Instance) -> None:
        for hour in instance.hours:
            part = (
                4 if hour == instance.hours.start and instance.option == "on-demand" else 1
            )  # 15 minutes of it
            quantity, cost = TEN_PLACES // part, instance.rate // part
            match instance.option:
                case "on-demand":
                    self._use(instance, hour, "Usage", quantity, cost, cost)
                case "spot":
                    paid = cost * (300 + hour % 7) // 1000
                    self._use(instance, hour, "Usage", quantity, paid, paid)
                case "reserved":
                    self._use(
                        instance, hour, "DiscountedUsage", quantity, 0, 56_080_000_000, reservation="ri-0aa1"
                    )
                case "savings-plan":
                    effective = 94_534_710_001
                    self._use(
                        instance, hour, "SavingsPlanCoveredUsage", quantity, cost, effective, plan="sp-0bb2"
                    )
                    self.charges.append(
                        Charge("SavingsPlanNegation", hour, hour + 1, -cost, 0, instance.usage_type,
                               instance.type, "", instance.region, plan="sp-0bb2")
                    )  # fmt: skip

    def _use(self, instance: Instance, hour: int, line_type: str, quantity: int, cost: int, effective: int,
             **more: str) -> None:  # fmt: skip
        self.charges.append(
            Charge(line_type, hour, hour + 1, cost, effective, instance.usage_type, instance.type, instance.id,
                   instance.region, instance.account, quantity, instance.rate, **more)  # type: ignore[arg-type]
        )  # fmt: skip
        place = instance.id, self.start + hour
        self.cost[place] = self.cost.get(place, 0) + effective * PUSD_PER_PART

    def _commitments(self) -> None:
        """Fees of what was reserved, and what of it was not used."""
        add, end = self.charges.append, self.count
        planned = end if any(one.option == "savings-plan" for one in self.fleet) else 0
        add(Charge("RIFee", 0, end, 900_000_000_000, 123_456_789_000, "USE2-HeavyUsage:inf2.48xlarge",
                   "inf2.48xlarge", reservation="ri-0aa1", region="us-east-2", unused_upfront=100_000_000_000,
                   unused_recurring=23_456_789_000, quantity=0))  # fmt: skip
        add(Charge("Fee", 0, 1, 5_000_000_000_000_0, 0, "USE2-HeavyUsage:inf2.48xlarge", "inf2.48xlarge",
                   reservation="ri-0aa1", region="us-east-2", quantity=0))  # fmt: skip
        for hour in range(planned):
            add(Charge("SavingsPlanRecurringFee", hour, hour + 1, 10**12, 10**9, "USW2-EC2SP:trn1.1yrNoUpfront",
                       plan="sp-0bb2", plan_family="trn1", plan_total=10**12, plan_used=10**12 - 10**9,
                       product="ComputeSavingsPlans"))  # fmt: skip
        add(Charge("SavingsPlanUpfrontFee", 0, 1, 7 * 10**13, 0, "USW2-EC2SP:trn1.1yrAllUpfront", plan="sp-0bb2",
                   plan_family="trn1", product="ComputeSavingsPlans"))  # fmt: skip
        add(Charge("Usage", 3, 4, 129_812_700_000, 129_812_700_000, "UnusedBox:inf2.48xlarge", "inf2.48xlarge",
                   "arn:aws:ec2:us-east-1:222222222222:capacity-reservation/cr-0cc3",
                   rate=129_812_700_000))  # fmt: skip
        self.reserved += (123_456_789_000 + planned * 10**9 + 129_812_700_000) * PUSD_PER_PART

    def _elsewhere(self) -> None:
        """What a company has besides, and what is on the bill twice over."""
        add, ours = self.charges.append, self.fleet[0].id if self.fleet else "i-none"
        for hour in range(self.count):
            add(
                Charge(
                    "Usage",
                    hour,
                    hour + 1,
                    960_000_000,
                    960_000_000,
                    "BoxUsage:m5.large",
                    "m5.large",
                    "i-0web",
                )
            )
            add(Charge("Usage", hour, hour + 1, 0, 0, "USE1-EKS-EC2-vCPU-Hours", "",
                       "arn:aws:eks:us-east-1:222222222222:pod/c/n/p/u", split_of=ours,
                       product="AmazonEKS"))  # fmt: skip
        add(
            Charge(
                "Usage",
                0,
                1,
                230_000_000,
                230_000_000,
                "TimedStorage-ByteHrs",
                "",
                "bucket",
                product="AmazonS3",
            )
        )

    def block(self, first: int = 48, hours: int = 24, ran: Sequence[int] = (24, 12)) -> None:
        """A capacity block of as many instances as `ran` has numbers: for how many of its hours each of them ran."""
        fee = 98_765 * 10**10 + 1  # more digits than a double has
        arn = "arn:aws:ec2:us-east-1:222222222222:capacity-reservation/cr-0dd4"
        self.charges.append(
            Charge("Fee", first, first + hours, fee, fee, "CapacityBlock:trn1n.32xlarge", "trn1n.32xlarge", arn,
                   quantity=len(ran) * hours * TEN_PLACES, capacity=arn, id="block")
        )  # fmt: skip
        for number, count in enumerate(ran):
            one = Instance(f"i-block{number}", "trn1n.32xlarge", "us-east-1", "capacity-block", 247_800_000_000,
                           range(first, first + count))  # fmt: skip
            self.fleet.append(one)
            for hour in one.hours:
                self._use(one, hour, "Usage", TEN_PLACES, 0, 0, capacity=arn)
        self.block_pusd = fee * PUSD_PER_PART

    def shown_only(self) -> int:
        """Credit, refund, tax and traffic of the instances. returns: what they come to, in picodollars."""
        ours, end = self.fleet[0], self.count
        amounts = (
            ("Credit", -5_000_000_000, ours.usage_type),
            ("Refund", -1_000_000_000, ours.usage_type),
            ("Tax", 70_000_000_000, ours.usage_type),
            ("Usage", 1_234_567_890, "USE1-DataTransfer-Out-Bytes"),
        )
        for line_type, cost, usage_type in amounts:
            self.charges.append(
                Charge(line_type, 0, end, cost, cost, usage_type, ours.type, ours.id, id=f"x{line_type}")
            )
        return sum(cost for _, cost, _ in amounts) * PUSD_PER_PART

    def discounts(self) -> int:
        """A contract's discount, by day and type, and once of one instance. returns: what it comes to."""
        ours = self.fleet[0]
        made = [
            Charge(
                "EdpDiscount",
                day,
                day + 24,
                -7_000_000_001,
                0,
                ours.usage_type,
                ours.type,
                account=ours.account,
            )
            for day in range(0, self.count - 23, 24)
        ]
        made.append(
            Charge("PrivateRateDiscount", ours.hours.start, ours.hours.start + 1, -13, 0, ours.usage_type,
                   ours.type, ours.id)
        )  # fmt: skip
        for number, charge in enumerate(made):
            charge.id = f"discount{number}"
        self.charges += made
        return sum(charge.cost for charge in made) * PUSD_PER_PART

    def time(self, hour: int) -> str:
        moment = EPOCH + datetime.timedelta(hours=self.start + hour)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def cur(self) -> list[dict[str, str]]:
        """The rows of CUR 2.0."""
        return [self._cur(charge) for charge in self.charges]

    def focus(self, version: str = "1.2") -> list[dict[str, str]]:
        """The rows of FOCUS. Negations and split rows are no part of it; what is not used has rows of its own."""
        skipped = ("SavingsPlanNegation", "EdpDiscount", "PrivateRateDiscount")
        kept = [charge for charge in self.charges if charge.line_type not in skipped and not charge.split_of]
        return [self._focus(charge, version) for charge in kept]

    def _cur(self, charge: Charge) -> dict[str, str]:
        covered = charge.line_type in ("DiscountedUsage", "SavingsPlanCoveredUsage")
        return {
            "bill_billing_period_start_date": self.time(self.span.start - self.start),
            "bill_invoice_id": "INV-1",
            "bill_payer_account_id": PAYER,
            "identity_line_item_id": charge.id,
            "line_item_availability_zone": "",
            "line_item_currency_code": "USD",
            "line_item_line_item_type": charge.line_type,
            "line_item_operation": "RunInstances",
            "line_item_product_code": charge.product,
            "line_item_resource_id": charge.resource,
            "line_item_unblended_cost": _text(charge.cost),
            "line_item_usage_account_id": charge.account,
            "line_item_usage_amount": _text(charge.quantity),
            "line_item_usage_end_date": self.time(charge.end),
            "line_item_usage_start_date": self.time(charge.start),
            "line_item_usage_type": charge.usage_type,
            "pricing_public_on_demand_rate": "" if charge.rate is None else _text(charge.rate),
            "product_instance_type": charge.instance_type,
            "product_region_code": charge.region,
            "reservation_effective_cost": _text(charge.effective) if covered and charge.reservation else "",
            "reservation_reservation_a_r_n": charge.reservation
            and f"arn:aws:ec2::1:reserved/{charge.reservation}",
            "reservation_unused_amortized_upfront_fee_for_billing_period": _text(charge.unused_upfront),
            "reservation_unused_recurring_fee": _text(charge.unused_recurring),
            "savings_plan_instance_type_family": charge.plan_family,
            "savings_plan_savings_plan_a_r_n": charge.plan
            and f"arn:aws:savingsplans::1:savingsplan/{charge.plan}",
            "savings_plan_savings_plan_effective_cost": _text(charge.effective)
            if covered and charge.plan
            else "",
            "savings_plan_total_commitment_to_date": _text(charge.plan_total),
            "savings_plan_used_commitment": _text(charge.plan_used),
            "capacity_reservation_capacity_reservation_arn": charge.capacity,
            "split_line_item_parent_resource_id": charge.split_of,
        }

    def _focus(self, charge: Charge, version: str) -> dict[str, str]:
        unused = charge.line_type in ("RIFee", "SavingsPlanRecurringFee")
        fee = charge.line_type in ("Fee", "SavingsPlanUpfrontFee")
        category = {"Credit": "Credit", "Refund": "Adjustment", "Tax": "Tax"}.get(charge.line_type, "Usage")
        commitment = charge.reservation or charge.plan
        covered = bool(commitment) and not unused and not fee
        row = {
            "AvailabilityZone": "",
            "BilledCost": _text(0 if covered or unused else charge.cost),
            "BillingAccountId": PAYER,
            "BillingCurrency": "USD",
            "BillingPeriodStart": self.time(self.span.start - self.start),
            "BillingPeriodEnd": self.time(self.span.stop - self.start),
            "ChargeCategory": "Purchase" if fee else category,
            "ChargeClass": "",
            "ChargeDescription": charge.usage_type,
            "ChargePeriodStart": self.time(charge.start),
            "ChargePeriodEnd": self.time(charge.end),
            "CommitmentDiscountId": commitment,
            "CommitmentDiscountStatus": "Unused" if unused else "Used" if covered else "",
            "CommitmentDiscountType": "Savings Plan" if charge.plan else "Reserved" if commitment else "",
            "EffectiveCost": _text(charge.effective),
            "ListCost": _text(charge.cost),
            "ListUnitPrice": "" if charge.rate is None else _text(charge.rate),
            "PricingCategory": "Committed"
            if commitment
            else "Dynamic"
            if "Spot" in charge.usage_type
            else "Standard",
            "PricingQuantity": _text(charge.quantity),
            "PricingUnit": "GB" if "Bytes" in charge.usage_type else "Hours",
            "RegionId": charge.region,
            "ResourceId": charge.resource,
            "SubAccountId": charge.account,
            "x_UsageType": charge.usage_type,
        }
        unused_box = charge.usage_type.startswith("UnusedBox")
        if version != "1.0":
            row |= {
                "CapacityReservationId": charge.capacity,
                "CapacityReservationStatus": "Unused" if unused_box else "",
                "InvoiceId": "INV-1",
            }
        else:
            row |= {"ProviderName": "AWS", "PublisherName": "AWS"}
        return row


def write_csv(rows: Sequence[dict[str, str]], path: pathlib.Path, *, packed: bool = False) -> pathlib.Path:
    """A file as AWS delivers it."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def write_parquet(rows: Sequence[dict[str, str]], path: pathlib.Path) -> pathlib.Path:
    """A file as AWS delivers it: amounts are doubles, times are timestamps."""
    import duckdb

    plain = write_csv(rows, path.with_suffix(".csv"))
    amounts = (
        "Cost",
        "cost",
        "amount",
        "rate",
        "fee",
        "_period",
        "to_date",
        "commitment",
        "Price",
        "Quantity",
    )
    picked = ", ".join(
        f'nullif("{name}", \'\')::DOUBLE AS "{name}"' if name.endswith(amounts)
        else f'nullif("{name}", \'\')::TIMESTAMP AS "{name}"' if name.endswith(("_date", "PeriodStart", "PeriodEnd"))
        else f'nullif("{name}", \'\') AS "{name}"'
        for name in rows[0]
    )  # fmt: skip
    source = f"read_csv('{plain}', header = true, all_varchar = true)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {picked} FROM {source}) TO '{path}' (FORMAT parquet)")
    plain.unlink()
    return path


def _text(parts: int) -> str:
    sign, parts = ("-", -parts) if parts < 0 else ("", parts)
    return f"{sign}{parts // TEN_PLACES}.{parts % TEN_PLACES:010d}"


def ids(instances: Iterable[Instance]) -> set[str]:
    return {one.id for one in instances}
