"""Takes an inference request, waits its turn, streams tokens back, and is honest when it breaks."""

from orchestrator import errors
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import Message, Priority, SamplingParams
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
