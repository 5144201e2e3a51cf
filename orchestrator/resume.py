"""Where an answer broke off after its caller had read of it, for whoever goes on from there.

exact      a runner with the same model, sampling state included, goes on after the last chunk:
the answer is that of an undisturbed run
prefill    another model is given the text so far as the beginning of its own turn, and nothing
else: the answer goes on as a text, and no word of ours is in the prompt
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import OrchestratorError
from orchestrator.events import TokenChunk


class Seam(StrEnum):
    """How a broken answer may go on at a deployment."""

    NONE = "none"
    EXACT = "exact"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Resume:
    """What an attempt goes on from; it sends what comes after these chunks, and none of them."""

    seam: Seam
    chunks: Sequence[TokenChunk]
    """All that was sent so far, read or not."""
    cause: OrchestratorError
    """What broke the answer first; if nobody can go on, this is the one error."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Tokens so far, as far as the runner could count them."""
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def is_plain(self) -> bool:
        """Whether it is text alone: half a tool call can't be gone on with as a text."""
        return all(chunk.fields is None for chunk in self.chunks)
