"""What stands in the YAML's values: whole numbers, durations, sizes, texts.

Each is a piece of metadata for `Annotated` and refuses with one sentence: what is allowed, and the
spelling that was probably meant. A unit is always written; a bare number never means seconds.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

MAX_USD = 1_000_000
DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
SIZE_PATTERN = r"^[0-9]+(B|KiB|MiB|GiB)$"

# what people write for a unit, in lower case, and what they mean by it
_SECONDS_MEANT = {
    word: unit
    for unit, words in {
        "ms": ("ms", "msec", "millis", "millisecond", "milliseconds"),
        "s": ("", "s", "sec", "secs", "second", "seconds"),
        "m": ("m", "min", "mins", "minute", "minutes"),
        "h": ("h", "hr", "hrs", "hour", "hours"),
    }.items()
    for word in words
}
_BYTES_MEANT = {
    word: unit
    for unit, words in {
        "B": ("", "b", "byte", "bytes"),
        "KiB": ("k", "kb", "kib"),
        "MiB": ("m", "mb", "mib"),
        "GiB": ("g", "gb", "gib"),
    }.items()
    for word in words
}
_AMOUNT = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)  # typing hashes it, and the schema is a dict
class Value:
    """How a value is read from plain data, and how an editor's schema describes it."""

    read: Callable[[object, ValidationInfo], object]
    """Returns the value or raises what `not_allowed` and `wrong` make."""
    schema: JsonSchemaValue

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return dict(self.schema)


def not_allowed(allowed: str, hint: str = "") -> PydanticCustomError:
    """The value isn't one of those that are allowed; the report tells it along with these."""
    return PydanticCustomError("not_allowed", "{allowed}", {"allowed": allowed, "hint": hint})


def wrong(text: str) -> PydanticCustomError:
    """The value can't be used for the reason given; the report doesn't tell the value."""
    return PydanticCustomError("wrong", "{text}", {"text": text})


def whole(low: int, high: int) -> Value:
    """A whole number from `low` to `high`, both included."""

    def read(value: object, _: ValidationInfo) -> int:
        # bool is an int to Python, never to the reader of a YAML file
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        hint = ""
        if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value, re.ASCII):
            hint = f"did you mean {value} without quotes?" if low <= int(value) <= high else ""
        raise not_allowed(f"a whole number from {low} to {high}", hint)

    return Value(read, {"type": "integer", "minimum": low, "maximum": high})


def money(places: int) -> Value:
    """An amount of USD, 0 or more, kept as a whole number of 10^-`places` USD."""

    def read(value: object, _: ValidationInfo) -> int:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_USD:
            # what YAML has read as 0.15 is written 0.15 again, and that is what was meant
            amount = Decimal(str(value)).scaleb(places)
            if amount == amount.to_integral_value():
                return int(amount)
        raise not_allowed(f"USD from 0 to {MAX_USD} with up to {places} digits after the point")

    return Value(read, {"type": "number", "minimum": 0, "maximum": MAX_USD})


def share() -> Value:
    """A part of a whole: above 0, up to 1."""

    def read(value: object, _: ValidationInfo) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
            return float(value)
        raise not_allowed("a number above 0, up to 1")

    return Value(read, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})


def seconds(low: float = 0.001, high: float = 86400.0) -> Value:
    """A duration with its unit (`200ms`, `30s`, `10m`, `1h`), kept as seconds."""
    limits = f"{duration_text(low)} to {duration_text(high)}"

    def read(value: object, _: ValidationInfo) -> float:
        amount, unit, hint = _split(value, SECONDS, _SECONDS_MEANT)
        if unit:
            # the division keeps 200ms at 0.2 exactly
            number = float(amount) / 1000 if unit == "ms" else float(amount) * SECONDS[unit]
            if low <= number <= high:
                return number
        raise not_allowed(f"a duration from {limits} with its unit (ms, s, m, h)", hint)

    return Value(read, {"type": "string", "pattern": DURATION_PATTERN})


def size(low: int, high: int) -> Value:
    """A size with its unit (`512KiB`, `10MiB`), kept as bytes."""
    limits = f"{size_text(low)} to {size_text(high)}"

    def read(value: object, _: ValidationInfo) -> int:
        amount, unit, hint = _split(value, BYTES, _BYTES_MEANT)
        if unit and amount.isdecimal():
            number = int(amount) * BYTES[unit]
            if low <= number <= high:
                return number
        raise not_allowed(f"a size from {limits} with its unit (B, KiB, MiB, GiB)", hint)

    return Value(read, {"type": "string", "pattern": SIZE_PATTERN})


def text(pattern: str, allowed: str) -> Value:
    """A text that matches the pattern as a whole; `allowed` says the same in words."""

    def read(value: object, _: ValidationInfo) -> str:
        # fullmatch: `$` alone would let a final line end pass
        if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
            return value
        raise not_allowed(allowed)

    return Value(read, {"type": "string", "pattern": pattern})


def duration_text(number: float) -> str:
    """Writes seconds as the YAML does, in the largest unit that divides them evenly."""
    milliseconds = round(number * 1000)
    for unit, length in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % length == 0:
            return f"{milliseconds // length}{unit}" if milliseconds else "0s"
    return f"{milliseconds}ms"


def size_text(size_bytes: int) -> str:
    """Writes bytes as the YAML does, in the largest unit that divides them evenly."""
    units = reversed(BYTES.items())  # the last of them, one byte, divides everything
    return next(f"{size_bytes // per}{unit}" for unit, per in units if size_bytes % per == 0)


def _split(
    value: object, units: Mapping[str, float], meant: Mapping[str, str]
) -> tuple[str, str, str]:
    """Returns number and unit, or a hint alone where the unit is missing or misspelt."""
    written = str(value) if isinstance(value, int | float) else value
    match = _AMOUNT.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return "", "", ""
    amount, unit = match.groups()
    if unit in units and written == amount + unit:
        return amount, unit, ""
    guess = meant.get(unit.lower())
    return "", "", f'did you mean "{amount}{guess}"?' if guess else ""
