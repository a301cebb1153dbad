"""Conversion of values to text as in JavaScript, because RSMQ's Node client validates that text."""

from __future__ import annotations

from decimal import Decimal
from typing import Any


def text(value: Any) -> str:
    """Return `String(value)` for a JSON value."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list):
        return ",".join("" if item is None else text(item) for item in value)
    return "[object Object]" if isinstance(value, dict) else str(value)


def is_falsy(value: Any) -> bool:
    """Return whether JavaScript treats the value as false."""
    return not isinstance(value, list | dict) and (not value or value != value)


def _number(value: float) -> str:
    try:
        number = float(value)
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or number != number:
        return "0" if number == 0 else "NaN"
    _, figures, exponent = Decimal(repr(abs(number))).normalize().as_tuple()
    digits = "".join(map(str, figures))
    point = len(digits) + int(exponent)
    return ("-" if number < 0 else "") + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
