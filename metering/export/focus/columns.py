"""FOCUS's columns of Cost and Usage, versions 1.2 to 1.4: types, where a value must stand, allowed values. Pure.

Source: FOCUS_Spec, v1.2 (2025-05), v1.3 (2025-12), v1.4 (2026-06), `datasets/cost_and_usage/columns`.
"""

import enum
import re
from typing import NamedTuple


class Version(enum.StrEnum):
    """A version of FOCUS that files are written for and checked by."""

    V1_2 = "1.2"
    V1_3 = "1.3"
    V1_4 = "1.4"


class Kind(enum.StrEnum):
    """What a cell holds."""

    STRING = "string"
    DECIMAL = "decimal"
    MOMENT = "moment"  # YYYY-MM-DDTHH:MM:SSZ
    JSON = "json"


class Column(NamedTuple):
    """One column. mandatory: it must be in the file; nullable: a cell of it may be empty.

    until: the last version that has it; None: the newest does. values: the only ones there may be.
    """

    name: str
    kind: Kind = Kind.STRING
    mandatory: bool = False
    nullable: bool = True
    values: frozenset[str] | None = None
    since: Version = Version.V1_2
    until: Version | None = None

    def is_of(self, version: Version) -> bool:
        """Does this version know it?"""
        return self.since <= version and (self.until is None or version <= self.until)


CUSTOM_PATTERN = re.compile(r"x_[A-Z][A-Za-z0-9]*")
"""A column, or a key of an object, that is not FOCUS's own."""

SUBCATEGORIES = {
    "AI and Machine Learning": {
        "AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing",
        "Other (AI and Machine Learning)",
    },
    "Compute": {
        "Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines",
        "Other (Compute)",
    },
}  # fmt: skip
"""Subcategories of the categories that serving a model may stand in; of the others any is taken."""
CATEGORIES = frozenset(
    {
        "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
        "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media",
        "Migration", "Mobile", "Networking", "Security", "Storage", "Web", "Other",
    }
)  # fmt: skip

CHARGE_CATEGORIES = frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"})
CHARGE_FREQUENCIES = frozenset({"One-Time", "Recurring", "Usage-Based"})
PRICING_CATEGORIES = frozenset({"Standard", "Dynamic", "Committed", "Other"})
COMMITMENT_STATES = frozenset({"Used", "Unused"})
CORRECTION = "Correction"

_D, _M, _J = Kind.DECIMAL, Kind.MOMENT, Kind.JSON
_V3, _V4 = Version.V1_3, Version.V1_4

COLUMNS = {
    column.name: column
    for column in (
        Column("AllocatedMethodDetails", _J, since=_V3),
        Column("AllocatedMethodId", since=_V3),
        Column("AllocatedResourceId", since=_V3),
        Column("AllocatedResourceName", since=_V3),
        Column("AllocatedTags", _J, since=_V3),
        Column("AvailabilityZone"),
        Column("BilledCost", _D, mandatory=True, nullable=False),
        Column("BillingAccountId", mandatory=True, nullable=False),
        Column("BillingAccountName", mandatory=True),
        Column("BillingAccountType"),
        Column("BillingCurrency", mandatory=True, nullable=False),
        Column("BillingPeriodEnd", _M, mandatory=True, nullable=False),
        Column("BillingPeriodStart", _M, mandatory=True, nullable=False),
        Column("CapacityReservationId"),
        Column("CapacityReservationStatus", values=COMMITMENT_STATES),
        Column("ChargeCategory", mandatory=True, nullable=False, values=CHARGE_CATEGORIES),
        Column("ChargeClass", mandatory=True, values=frozenset({CORRECTION})),
        Column("ChargeDescription", mandatory=True),
        Column("ChargeFrequency", nullable=False, values=CHARGE_FREQUENCIES),
        Column("ChargePeriodEnd", _M, mandatory=True, nullable=False),
        Column("ChargePeriodStart", _M, mandatory=True, nullable=False),
        Column("CommitmentDiscountCategory", values=frozenset({"Spend", "Usage"})),
        Column("CommitmentDiscountId"),
        Column("CommitmentDiscountName"),
        Column("CommitmentDiscountQuantity", _D),
        Column("CommitmentDiscountStatus", values=COMMITMENT_STATES),
        Column("CommitmentDiscountType"),
        Column("CommitmentDiscountUnit"),
        Column("CommitmentProgramEligibilityDetails", _J, since=_V4),
        Column("ConsumedQuantity", _D),
        Column("ConsumedUnit"),
        Column("ContractApplied", _J, since=_V3),
        Column("ContractedCost", _D, mandatory=True, nullable=False),
        Column("ContractedUnitPrice", _D),
        Column("EffectiveCost", _D, mandatory=True, nullable=False),
        Column("HostProviderName", mandatory=True, nullable=False, since=_V3),
        Column("InvoiceDetailId", since=_V4),
        Column("InvoiceId"),
        Column("InvoiceIssuerName", mandatory=True, nullable=False),
        Column("ListCost", _D, mandatory=True, nullable=False),
        Column("ListUnitPrice", _D),
        Column("PricingCategory", values=PRICING_CATEGORIES),
        Column("PricingCurrency", nullable=False),
        Column("PricingCurrencyContractedUnitPrice", _D),
        Column("PricingCurrencyEffectiveCost", _D, nullable=False),
        Column("PricingCurrencyListUnitPrice", _D),
        Column("PricingQuantity", _D, mandatory=True),
        Column("PricingUnit", mandatory=True),
        Column("ProviderName", mandatory=True, nullable=False, until=_V3),
        Column("PublisherName", mandatory=True, nullable=False, until=_V3),
        Column("RegionId"),
        Column("RegionName"),
        Column("ResourceId"),
        Column("ResourceName"),
        Column("ResourceType"),
        Column("ServiceCategory", mandatory=True, nullable=False, values=CATEGORIES),
        Column("ServiceName", mandatory=True, nullable=False),
        Column("ServiceProviderName", mandatory=True, nullable=False, since=_V3),
        Column("ServiceSubcategory", nullable=False),
        Column("SkuId"),
        Column("SkuMeter"),
        Column("SkuPriceDetails", _J),
        Column("SkuPriceId"),
        Column("SubAccountId"),
        Column("SubAccountName"),
        Column("SubAccountType"),
        Column("Tags", _J),
    )
}

SUMMABLE = frozenset(
    {
        "BilledCost", "CommitmentDiscountQuantity", "ConsumedQuantity", "ContractedCost", "EffectiveCost", "ListCost",
        "PricingCurrencyEffectiveCost", "PricingQuantity",
    }
)  # fmt: skip
"""Amounts: the rows of a split charge share these out; in all else they are alike."""
ALLOCATED = (
    "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags",
)  # fmt: skip
"""What tells the rows of a split charge apart."""

CURRENCIES = frozenset(
    """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF
    CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD
    HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD
    MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN
    PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD
    TWD TZS UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF XAG XAU XCD XCG XDR XOF XPD XPF XPT XSU XUA YER
    ZAR ZMW ZWG
    """.split()  # noqa: SIM905
)
"""ISO 4217."""
