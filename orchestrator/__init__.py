"""Takes an inference request, waits its turn, streams tokens back, and is honest when it breaks."""

from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import Message, Priority, SamplingParams

if TYPE_CHECKING:
    from orchestrator.sdk import Orchestrator, submit
    from orchestrator.stream import Answer, TokenStream

__all__ = [
    "Answer",
    "FinishReason",
    "Finished",
    "Message",
    "Orchestrator",
    "Priority",
    "SamplingParams",
    "TokenChunk",
    "TokenStream",
    "Usage",
    "errors",
    "submit",
]


def __getattr__(name: str) -> object:
    """Imports what serves when it is first asked for.

    Every model host imports this package, and needs nothing of that: most of a second of its start.

    Raises:
        AttributeError: There is no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator import sdk, stream  # noqa: PLC0415 - see above

    return getattr(sdk, name, None) or getattr(stream, name)
