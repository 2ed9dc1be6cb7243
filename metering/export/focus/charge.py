"""One charge as FOCUS has it, in our own units, before it is written. Pure.

Costs are attodollars (10⁻¹⁸ USD): a price in picodollars per unit × a quantity in millionths of the unit, exact.
"""

import enum

import msgspec

from metering.cost.close_row import CloseRow
from metering.export.export_parts import Correction

MICRO = 1_000_000
HOURS = "Hours"
TOKENS = "Tokens"
PER_MTOK = "1000000 Tokens"
REQUESTS = "Requests"
UNITS = "Units"


class Category(enum.StrEnum):
    """ChargeCategory, of what we charge."""

    USAGE = "Usage"
    ADJUSTMENT = "Adjustment"


class Quantity(msgspec.Struct, frozen=True):
    """So many millionths of a unit."""

    micro: int
    unit: str


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """What usage is priced by. pusd: per unit, in picodollars. details: of the SKU's price; keys as FOCUS has them."""

    quantity: Quantity
    pusd: int
    sku: str
    meter: str
    sku_price: str
    details: tuple[tuple[str, str], ...] = ()
    category: str = "Standard"

    @property
    def cost_ausd(self) -> int:
        """List price × quantity."""
        return self.pusd * self.quantity.micro


class Resource(msgspec.Struct, frozen=True):
    """What a charge is for."""

    id: str
    type: str


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A row's part of a charge that was split. ratio: in thousand-millionths. usage: by what; in units of 10⁻⁹.

    tenant: None: nobody's. tags: as of the call.
    """

    method: str
    row_method: str
    ratio: int
    usage_unit: str
    usage: int
    tenant: str | None = None
    tags: dict[str, str] | None = None


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a FOCUS file. cost_ausd: billed and effective; list_ausd: list and contracted.

    priced: None of an adjustment. row: whose amounts stand in the x_ columns; None: they stand elsewhere.
    of: the row that its place and hardware are of.
    """

    hour: int
    billed_in: str
    revision: int
    correction: Correction | None
    category: Category
    description: str
    cost_ausd: int
    list_ausd: int
    priced: Priced | None = None
    consumed: Quantity | None = None
    resource: Resource | None = None
    tenant: str | None = None
    tags: dict[str, str] | None = None
    allocation: Allocation | None = None
    of: CloseRow
    row: CloseRow | None = None
