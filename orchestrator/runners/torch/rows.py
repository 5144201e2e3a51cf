"""Many answers in one forward pass, each with a cache of its own.

A decode step reads all weights once, for one token or for eight: taken together, eight answers cost
little more than one. The linear layers see the answers as rows of one batch; only attention, where
each row looks at its own past, goes row by row, through the kernel that transformers itself uses.
So no row is padded and none sees another.

It works for any model whose attention goes through transformers' attention interface and whose
cache grows by token. `enable` tries that on the model itself and says no where it isn't so.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from orchestrator.runners.torch.forward import forward

NAME = "orchestrator_rows"
ATTENTION = "_attn_implementation"
"""Of a model's config: the only place where transformers says which attention a model uses."""
PROBES = ((1, 2, 3, 4, 5, 6, 7), (3, 2, 1))
TOLERANCE = 0.02
"""Of the largest logit: rounding stays below it, in bfloat16 too; a wrong past doesn't."""

Tensors = list[torch.Tensor]


class RowCaches:
    """The caches of several answers as one; row i of a batch belongs to the i-th of them.

    Args:
        caches: Each of one row; they grow.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        self._caches = caches

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensors, Tensors]:
        """Appends each row to its own cache and returns what each has to look at.

        Args:
            keys: Of the model's dtype, (batch, heads, 1, width).
            values: Like `keys`.
            layer: Its index in the model.
        """
        pairs = [
            cache.update(keys[row : row + 1], values[row : row + 1], layer)
            for row, cache in enumerate(self._caches)
        ]
        return [key for key, _ in pairs], [value for _, value in pairs]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | Tensors,
    value: torch.Tensor | Tensors,
    attention_mask: torch.Tensor | None,
    **options: Any,  # noqa: ANN401 - whatever the model hands to transformers' own function
) -> tuple[torch.Tensor, None]:
    """Attention as in transformers, and row by row where `RowCaches` gave the keys.

    Args:
        module: The attention layer.
        query: Of the model's dtype, (batch, heads, tokens, width).
        key: Of the model's dtype, (batch, key heads, length, width), or a list of one-row ones.
        value: Like `key`.
        attention_mask: As transformers makes it; a row alone needs none, it sees all it has.
        options: Passed on.
    """
    if isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    rows = [
        sdpa_attention_forward(module, query[row : row + 1], key[row], value[row], None, **options)[
            0
        ]
        for row in range(len(query))
    ]
    return torch.cat(rows), None


@torch.inference_mode()
def forward_rows(
    model: PreTrainedModel, tokens: Sequence[int], positions: Sequence[int], caches: Sequence[Cache]
) -> torch.Tensor:
    """Feeds one token to each answer; returns the logits, float32, (answers, vocabulary), on CPU.

    Args:
        model: One that `enable` said yes to.
        tokens: One an answer.
        positions: Of each token in its answer.
        caches: One an answer; they are extended, and of no use any more if this raises.
    """
    device = model.device
    output = model(
        input_ids=torch.tensor(tokens, dtype=torch.int64, device=device)[:, None],
        position_ids=torch.tensor(positions, dtype=torch.int64, device=device)[:, None],
        # four dimensions tell transformers to make no mask of its own; nobody looks at it
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),
        past_key_values=RowCaches(caches),
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1].float().cpu()


def enable(model: PreTrainedModel) -> bool:
    """Prepares the model for `forward_rows`; False, and it stays as it is, if the logits differ."""
    usual = str(getattr(model.config, ATTENTION, ""))
    if usual not in {"sdpa", NAME}:
        return False
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        expected = torch.stack([_after(model, probe) for probe in PROBES])
        model.set_attn_implementation(NAME)
        found = _together(model)
    except Exception:  # noqa: BLE001 - a model of another make may fail anywhere: it goes one by one
        found, expected = torch.zeros(1), torch.ones(1)
    error = (found - expected).abs().max() / expected.abs().max()
    if bool(error < TOLERANCE):
        return True
    model.set_attn_implementation(usual)
    return False


def _after(model: PreTrainedModel, probe: Sequence[int]) -> torch.Tensor:
    _, cache = forward(model, probe[:-1], None)
    return forward(model, probe[-1:], cache)[0]


def _together(model: PreTrainedModel) -> torch.Tensor:
    caches = [forward(model, probe[:-1], None)[1] for probe in PROBES]
    last = [probe[-1] for probe in PROBES]
    return forward_rows(model, last, [len(probe) - 1 for probe in PROBES], caches)
