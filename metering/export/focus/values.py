"""How FOCUS writes values: numbers, moments, units, objects. Reading them strictly. Pure."""

import datetime
import decimal
import json
import re
from typing import NoReturn

_NUMBER_PATTERN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(E-?[0-9]{1,3})?", re.ASCII)
_MOMENT_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_NUMBER_CHARACTERS_MAX = 80
_SIZES = frozenset(
    "b B Kb KB Mb MB Gb GB Tb TB Pb PB Eb EB Kib KiB Mib MiB Gib GiB Tib TiB Pib PiB Eib EiB".split()  # noqa: SIM905
)
_TIMES = frozenset("Year Month Day Hour Minute Second Millisecond Microsecond".split())  # noqa: SIM905
_NOUN_PATTERN = re.compile(r"[A-Z][A-Za-z]*( [A-Z][A-Za-z]*)*")
_QUANTITY_PATTERN = re.compile(r"([1-9][0-9]*) (.+)")
EXACT = decimal.Context(
    prec=400, Emax=9_999, Emin=-9_999, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow]
)
"""Arithmetic that never rounds: what does not fit is an error."""

Scalar = str | bool | int | decimal.Decimal | None


def number(text: str) -> decimal.Decimal | None:
    """A number as FOCUS writes it: digits, one point, `E` with an exponent; no plus sign. None: it is not so."""
    fits = len(text) <= _NUMBER_CHARACTERS_MAX and _NUMBER_PATTERN.fullmatch(text)
    return EXACT.create_decimal(text) if fits else None


def moment(text: str) -> datetime.datetime | None:
    """A moment, `YYYY-MM-DDTHH:MM:SSZ`. None: it is not written so, or there is no such."""
    if not _MOMENT_PATTERN.fullmatch(text):
        return None
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def unit(text: str) -> bool:
    """Is this a unit as UnitFormat has it: "Hours", "1000 Tokens", "GB-Hours", "GB/Hour", "Units/3 Months"?"""
    if quantity := _QUANTITY_PATTERN.fullmatch(text):
        text = quantity[2]
    whole, slash, per = text.partition("/")
    if slash and not _base(per.rpartition(" ")[2] if _QUANTITY_PATTERN.fullmatch(per) else per):
        return False
    return all(map(_base, whole.split("-", 1)))


def _base(text: str) -> bool:
    if text in _SIZES:
        return True
    if not _NOUN_PATTERN.fullmatch(text):
        return False
    plain = text.lower().removesuffix("s")
    return plain not in {one.lower() for one in _TIMES} or text.removesuffix("s") in _TIMES


def parsed(text: str) -> object:
    """A JSON value with exact numbers. Raises ValueError: it is none, or an object has a key twice."""
    return json.loads(
        text,
        parse_float=_exact,
        parse_int=_exact,
        parse_constant=_refuse,
        object_pairs_hook=_unique,
    )


def flat(text: str) -> dict[str, Scalar] | None:
    """An object without objects or lists in it. None: it is none."""
    try:
        found = parsed(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        return None
    return found


def _exact(text: str) -> decimal.Decimal:
    if len(text) > _NUMBER_CHARACTERS_MAX:
        raise ValueError("a number has too many digits")
    return EXACT.create_decimal(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
