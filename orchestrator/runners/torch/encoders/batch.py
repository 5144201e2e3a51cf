"""Texts that go through the model together, one after the other in one row: no padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orchestrator.runners.torch.encoders.pending import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tokens of several texts, those of equal length beside each other."""

    ids: torch.Tensor
    """int64, (tokens,)"""
    kinds: torch.Tensor
    """int64, (tokens,): 0 in the first text of a pair, 1 in the second."""
    places: torch.Tensor
    """int64, (tokens,): of each token within its text, from 0."""
    groups: Sequence[tuple[int, int]]
    """(texts, their length) in the order of the tokens."""

    @property
    def count(self) -> int:
        """Texts in all."""
        return sum(texts for texts, _ in self.groups)


def batch_of(texts: Sequence[Text], device: torch.device) -> Batch:
    """Returns the batch.

    Args:
        texts: At least one, in the order of their lengths.
        device: Where the model is.
    """
    groups: list[tuple[int, int]] = []
    for text in texts:
        length = len(text.tokens)
        if groups and groups[-1][1] == length:
            groups[-1] = (groups[-1][0] + 1, length)
        else:
            groups.append((1, length))
    ids = torch.tensor([token for text in texts for token in text.tokens])
    kinds = torch.tensor([kind for text in texts for kind in text.kinds])
    places = torch.cat([torch.arange(length).repeat(count) for count, length in groups])
    return Batch(
        ids=ids.to(device), kinds=kinds.to(device), places=places.to(device), groups=groups
    )


def cut(texts: Sequence[Text], tokens: int, *, padded: bool) -> list[list[Text]]:
    """Sorts texts by length and cuts them into batches of at most so many tokens.

    Args:
        texts: Any number of them.
        tokens: Of a batch; a longer text is a batch by itself.
        padded: Whether each text of a batch costs as much as the longest.
    """
    batches: list[list[Text]] = []
    total = 0
    for text in sorted(texts, key=lambda text: len(text.tokens)):
        length = len(text.tokens)
        after = length * (len(batches[-1]) + 1) if padded and batches else total + length
        if not batches or after > tokens:
            batches.append([])
            after = length
        batches[-1].append(text)
        total = after
    return batches
