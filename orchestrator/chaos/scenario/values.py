"""What stands in a scenario's values besides those of the configuration: rates and bounds."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationInfo

from orchestrator.points import Point
from orchestrator.reading.quantities import SECONDS, Value, not_allowed

_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)/(s|m)", re.ASCII)
_BOUND = re.compile(r"(>=|<=|>|<) ?([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m)?", re.ASCII)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that a measured number must satisfy."""

    sign: str
    number: float
    """In seconds where the text has a unit."""
    text: str

    def holds(self, measured: float) -> bool:
        """Whether the number satisfies it."""
        return _COMPARE[self.sign](measured, self.number)


def read_bound(text: str) -> Bound:
    """A bound from its own text.

    Raises:
        ValueError: It is none.
    """
    found = _BOUND.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no comparison")
    return Bound(found[1], float(found[2]) * SECONDS.get(found[3] or "s", 1.0), text)


def per_time() -> Value:
    """Requests per time (`30/s`, `90/m`), kept per second."""

    def read(value: object, _: ValidationInfo) -> float:
        found = _RATE.fullmatch(value) if isinstance(value, str) else None
        if found is None or not float(found[1]):
            raise not_allowed("a rate above 0 with its unit (30/s, 90/m)")
        return float(found[1]) / (1.0 if found[2] == "s" else 60.0)

    return Value(read, {"type": "string", "pattern": f"^{_RATE.pattern}$"})


def bound(*, timed: bool = False) -> Value:
    """A sign and a number (`>= 0.99`), or a duration (`<= 3s`).

    Args:
        timed: Whether the number is a duration.
    """
    allowed = 'a comparison, as "<= 500ms"' if timed else 'a comparison, as ">= 0.99"'

    def read(value: object, _: ValidationInfo) -> Bound:
        found = _BOUND.fullmatch(value) if isinstance(value, str) else None
        if found is None or bool(found[3]) != timed:
            raise not_allowed(allowed)
        unit = SECONDS[found[3]] if timed else 1.0
        return Bound(found[1], float(found[2]) * unit, found[0])

    return Value(read, {"type": "string", "pattern": f"^{_BOUND.pattern}$"})


def point() -> Value:
    """A named place in the code."""
    names = [known.value for known in Point]

    def read(value: object, _: ValidationInfo) -> Point:
        if value not in names:
            raise not_allowed("a point; `orchestrator chaos list points` has them all")
        return Point(value)

    return Value(read, {"type": "string", "enum": names})


def share() -> Value:
    """A number from 0 to 1."""

    def read(value: object, _: ValidationInfo) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise not_allowed("a number from 0 to 1")
        return float(value)

    return Value(read, {"type": "number", "minimum": 0, "maximum": 1})
