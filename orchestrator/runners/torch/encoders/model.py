"""A model in memory that reads texts, and what its engine needs to know of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from orchestrator.runners.torch.encoders.batch import Batch, batch_of
from orchestrator.runners.torch.encoders.pending import Text
from orchestrator.runners.torch.settings import EncoderSettings
from orchestrator.runners.torch.wire import Ready

Outputs = Callable[[Batch], torch.Tensor]
"""From a batch to (texts, outputs), float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The model; nobody else uses it."""

    settings: EncoderSettings
    tokenizer: Tokenizer
    """It doesn't pad; it cuts what is too long, if the settings say so."""
    outputs: Outputs
    packs: bool
    """Whether a batch costs its tokens, or else as much as the longest text times their number."""
    pairs: bool
    """Whether the model is told which text of a pair a token belongs to."""
    device: torch.device
    max_length: int
    """Tokens of a text that are read."""
    normalize: bool
    """Whether a vector that is cut has to get the length 1 again."""
    labels: Mapping[int, str]
    """Names of the outputs, if they have some."""
    independent: bool
    """Whether several classes may be right at once."""
    facts: Ready

    def run(self, texts: Sequence[Text]) -> torch.Tensor:
        """Returns what the model says of each text, float32, (texts, outputs), on the CPU.

        Args:
            texts: At least one, in the order of their lengths.
        """
        with torch.inference_mode():
            return self.outputs(batch_of(texts, self.device)).cpu()
