"""What the cells of a bill's rows say, whatever its format: amounts, times, ids, usage types of AWS. Pure.

A cell is text; None: the file lacks the column, or it is empty there.
"""

import datetime
import decimal
import re

from metering.cost.bill import HOURLY, Line
from metering.units import NS_PER_HOUR, NS_PER_S, PICO_USD_PER_USD

INSTANCE_USAGE = r"(?:^|-)(?:BoxUsage|SpotUsage|DedicatedUsage|HostBoxUsage)(?::|$)"
"""Usage types of an instance's hours; before the dash stands a code of the region."""
RESERVED_USAGE = (
    r"(?:^|-)(?:UnusedBox|UnusedDed|HeavyUsage|Reservation|DedicatedRes|EC2SP|"
    r"[A-Za-z]*CapacityBlock\w*)(?::|$)"
)
"""Usage types of what is reserved, and of its fees."""
CAPACITY_BLOCK = "CapacityBlock"
SPOT_USAGE = "SpotUsage"
INSTANCE_PREFIX = "i-"

_PLAN = "EC2SP"  # what follows is a family and a term
_CAPACITY_PREFIX = "cr-"
_EXACT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
_INSTANCE_USAGE = re.compile(INSTANCE_USAGE)
_RESERVED_USAGE = re.compile(RESERVED_USAGE)


class BillError(ValueError):
    """This is no bill that can be read, or not of what it should be; the message says where and why."""


class Moments:
    """Reads times as bills write them: ISO 8601, with a T or a space, in UTC. There are few of them, in many rows."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def read(self, text: str | None, where: str) -> int:
        """Nanoseconds since 1970. Raises BillError."""
        found = self._known.get(text or "")
        if found is None:
            found = self._known[text or ""] = _moment(text, where)
        return found


def is_instance_use(usage_type: str | None) -> bool:
    """Hours of an instance."""
    return bool(_INSTANCE_USAGE.search(usage_type or ""))


def is_reserved_use(usage_type: str | None) -> bool:
    """Hours of what is reserved, or a fee for it."""
    return bool(_RESERVED_USAGE.search(usage_type or ""))


def type_of(usage_type: str | None) -> str | None:
    """The instance type that a usage type names: "USE2-BoxUsage:inf2.48xlarge" → "inf2.48xlarge". A plan has none."""
    what, _, name = (usage_type or "").partition(":")
    return None if what.endswith(_PLAN) else name or None


def family_of(name: str | None, usage_type: str | None) -> str | None:
    """Of an instance type, or what a usage type names: an instance type's, or a plan's."""
    return (name or (usage_type or "").partition(":")[2]).partition(".")[0] or None


def tail(text: str | None) -> str | None:
    """The id at the end of an ARN, or the id itself."""
    return (text or "").rpartition("/")[2] or None


def capacity_of(capacity: str | None, resource: str | None) -> str | None:
    """The id of the capacity reservation or block that a row names, or is about."""
    found = tail(capacity)
    if found is None and (end := tail(resource)) is not None and end.startswith(_CAPACITY_PREFIX):
        return end
    return found


def pusd(text: str | None, where: str) -> int:
    """An amount in USD as picodollars; nothing is 0. Raises BillError."""
    return integer(text, PICO_USD_PER_USD, where) or 0


def integer(text: str | None, parts: int, where: str) -> int | None:
    """A decimal as an integer count of a smaller unit, half up; exponents are read. None: there is no text."""
    if text is None:
        return None
    try:
        exact = _EXACT.multiply(decimal.Decimal(text), parts)
        return int(exact.to_integral_value(decimal.ROUND_HALF_UP, _EXACT))
    except (decimal.InvalidOperation, OverflowError, ValueError):
        raise BillError(f"{where} has {text!r} where a number belongs") from None


def checked(line: Line, where: str) -> Line:
    """Refuse what would be put into the wrong hour, or into no instance. Raises BillError."""
    if line.meaning in HOURLY:
        if line.resource is None:
            message = "is an instance's use and names none: make the export with resource ids"
            raise BillError(f"{where} {message}")
        last_ns = max(line.start_ns, line.end_ns - 1)
        if line.start_ns // NS_PER_HOUR != last_ns // NS_PER_HOUR:
            raise BillError(f"{where} is longer than an hour: make the export by hour")
    return line


def _moment(text: str | None, where: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise BillError(f"{where} has {text!r} where a time belongs") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(seconds=1) * NS_PER_S
