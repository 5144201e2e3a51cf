"""What the events of a wire format consist of, as far as it matters for those that are large.

Paths are the names of the members that lead to a value, with dots between; arrays count for
nothing: `choices.delta.content`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NO_PATH = re.compile(r"(?!)")
KEPT = re.compile(
    r"(?:.*\.)?(?:id|index|name|type|status|reason|done_reason|finish\w*|stop\w*|matched_stop|block\w*"
    r"|signature|thought_?[sS]ignature)"
)
"""Short as a rule, or base64, which is read in no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the events of one wire format consist of; each expression must match a whole path."""

    several: re.Pattern[str]
    """Texts and arrays of which an event may bring a part, and the next event more; objects too,
    if the reader takes them as they are."""
    anything: re.Pattern[str]
    """Values that the reader takes as they are, or doesn't look at."""
    kept: re.Pattern[str] = KEPT
    """Texts that the reader looks at, or tells with a later event: they stay where they are."""
    one: re.Pattern[str] = NO_PATH
    """Arrays of which the reader takes the first item whose index is 0, and no other."""
    items: Callable[[bytes], object] | None = None
    """Reads a JSON array of some of them; it refuses what the reader would, were it its own."""
    names: Sequence[str] = ()
    """Members that say whose part it is."""
    pairs: Sequence[bytes] = ()
    """Names of arrays of one object whose items belong together, place by place."""
    written: bool = False
    """Whether the arguments of calls, which come as objects, are told as they were written."""


PLAIN = Shape(several=NO_PATH, anything=NO_PATH)
"""Nothing is known of it: all but long texts is read at once."""


def others(path: str, *names: str) -> str:
    """Returns an expression for all members of an object but those, and for what is in them.

    Args:
        path: An expression for the object's path; empty for the event itself.
        names: Expressions for the names of the members that are read.
    """
    begin = rf"{path}\." if path else ""
    return rf"{begin}(?!(?:{'|'.join(names)})(?:\.|$)).+"


def counts(path: str) -> tuple[str, str]:
    """Returns expressions for all in a usage but the counts, and the details of counts.

    Args:
        path: An expression for the usage's path.
    """
    return others(path, "[a-z_]+_details"), rf"{path}\.[^.]+\..+"
