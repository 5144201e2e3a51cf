"""What becomes of the token vectors: one vector a text, or what a classifier says of it."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    BertForSequenceClassification,
    PreTrainedModel,
    RobertaForSequenceClassification,
    XLMRobertaForSequenceClassification,
)

from orchestrator.runners.torch.encoders.batch import Batch
from orchestrator.runners.torch.settings import Pooling

Head = Callable[[torch.Tensor, Batch], torch.Tensor]
"""From (tokens, hidden) to (texts, outputs), float32."""


def pooled(pooling: Pooling, *, normalize: bool) -> Head:
    """Returns what makes one vector of those of a text's tokens."""

    def head(hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        rows: list[torch.Tensor] = []
        start = 0
        for count, length in batch.groups:
            end = start + count * length
            rows.append(_pool(hidden[start:end].view(count, length, -1).float(), pooling))
            start = end
        vectors = torch.cat(rows)
        return functional.normalize(vectors, dim=1) if normalize else vectors

    return head


def _pool(vectors: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """From (texts, length, hidden) to (texts, hidden)."""
    match pooling:
        case "mean":
            return vectors.mean(1)
        case "cls":
            return vectors[:, 0]
        case "last":
            return vectors[:, -1]
        case "max":
            return vectors.amax(1)


def classifying(model: PreTrainedModel) -> Head | None:
    """Returns a model's own head over its first tokens' vectors; None if it isn't known here."""
    match model:
        case BertForSequenceClassification():
            pooler: nn.Module = model.get_submodule("bert.pooler")
        case RobertaForSequenceClassification() | XLMRobertaForSequenceClassification():
            pooler = nn.Identity()  # its classifier takes the first token's vector by itself
        case _:
            return None
    classifier = model.get_submodule("classifier")

    def head(hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        lengths = [length for count, length in batch.groups for _ in range(count)]
        firsts = torch.tensor([0, *lengths[:-1]], device=hidden.device).cumsum(0)
        scores: torch.Tensor = classifier(pooler(hidden[firsts][:, None]))
        return scores.float()

    return head
