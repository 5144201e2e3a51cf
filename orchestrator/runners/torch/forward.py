"""One answer through the model: the plain way, which every causal model of transformers can go."""

from collections.abc import Sequence

import torch
from transformers import Cache, PreTrainedModel


@torch.inference_mode()
def forward(
    model: PreTrainedModel, tokens: Sequence[int], cache: Cache | None
) -> tuple[torch.Tensor, Cache]:
    """Feeds tokens of one answer; returns the logits after the last of them and the longer cache.

    Args:
        model: In evaluation mode.
        tokens: At least one.
        cache: What the answer's earlier tokens left behind, None at its beginning.

    Returns:
        float32, (vocabulary,), on CPU; and the cache, the same object if one was given.
    """
    output = model(
        input_ids=torch.tensor([list(tokens)], dtype=torch.int64, device=model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,  # a prompt's other logits are never looked at
    )
    return output.logits[0, -1].float().cpu(), output.past_key_values
