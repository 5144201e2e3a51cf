"""Any model of transformers, its texts padded to the longest: the way for all that isn't packed."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from orchestrator.runners.torch.encoders.batch import Batch


class PaddedModel:
    """A model of transformers, asked with padding.

    Args:
        model: The model.
        padding: The token that fills a row up.
    """

    __slots__ = ("_kinds_known", "_model", "_padding")

    def __init__(self, model: PreTrainedModel, padding: int) -> None:
        self._model = model
        self._padding = padding
        self._kinds_known = bool(getattr(model.config, "type_vocab_size", 0))

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Returns a vector for each token, (tokens, hidden)."""
        output, mask = self._run(batch)
        return output.last_hidden_state[mask]

    def logits(self, batch: Batch) -> torch.Tensor:
        """Returns what a model with a head says of each text, (texts, labels)."""
        output, _ = self._run(batch)
        return output.logits

    def _run(self, batch: Batch):  # noqa: ANN202 - transformers' own classes, one for each model
        lengths = [length for count, length in batch.groups for _ in range(count)]
        ids = _padded(batch.ids, lengths, self._padding)
        mask = _padded(torch.ones_like(batch.ids), lengths, 0)
        more = {"token_type_ids": _padded(batch.kinds, lengths, 0)} if self._kinds_known else {}
        return self._model(input_ids=ids, attention_mask=mask, **more), mask.bool()


def _padded(values: torch.Tensor, lengths: list[int], filler: int) -> torch.Tensor:
    rows = list(values.split(lengths))
    return pad_sequence(rows, batch_first=True, padding_value=filler)
