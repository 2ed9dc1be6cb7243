"""How amounts and words are written where a spreadsheet or a script reads them. Pure."""

from metering.units import NS_PER_S, usd_text

_MICRO = 1_000_000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_ATTO_PER_PICO = 1_000_000


def guarded(text: str) -> str:
    """Words that somebody else chose, for a cell of CSV: what a spreadsheet took for a formula gets an apostrophe."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def usd(pusd: int | None) -> str:
    """Picodollars as a decimal with 12 places; "" if unknown."""
    return "" if pusd is None else usd_text(pusd)


def usd_of_atto(ausd: int) -> str:
    """Attodollars (10⁻¹⁸ USD) as a decimal, exact: with 12 places, with 18 where these are not enough."""
    pusd, rest = divmod(ausd, _ATTO_PER_PICO)
    if not rest:
        return usd_text(pusd)
    sign, whole = ("-", -ausd) if ausd < 0 else ("", ausd)
    return f"{sign}{whole // 10**18}.{whole % 10**18:018d}"


def millionths(amount: int) -> str:
    """A count of millionths (micro-hours, micro-dollars) as a decimal with 6 places."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    return f"{sign}{amount // _MICRO}.{amount % _MICRO:06d}"


def seconds(ns: int) -> str:
    """Nanoseconds as a decimal of seconds with 9 places."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // NS_PER_S}.{ns % NS_PER_S:09d}"
