"""BERT and its kin over texts without padding: the forward pass written out, weights laid out once.

Every layer but attention sees one long row of tokens. Attention runs once for each length in the
batch, over all texts of that length. On a CPU the weights are packed for the processor, see
`runners.torch.linears`.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from transformers import BertModel, PreTrainedModel, RobertaModel, XLMRobertaModel

from orchestrator.runners.torch import linears
from orchestrator.runners.torch.encoders.batch import Batch

Body = Callable[[Batch], torch.Tensor]
"""From a batch to a vector for each token: (tokens, hidden)."""


class ForeignModelError(Exception):
    """The model isn't built as this code expects."""


class _Layer:
    """One layer of the encoder.

    Args:
        layer: As transformers has it.
        heads: Attention heads.
        make: Makes a layer of a weight and a bias.
    """

    __slots__ = ("_attention_out", "_heads", "_inner", "_norm_1", "_norm_2", "_outer", "_qkv")

    def __init__(self, layer: nn.Module, heads: int, make: Callable[..., linears.Linear]) -> None:
        self._heads = heads
        parts = [_linear(layer, f"attention.self.{name}") for name in ("query", "key", "value")]
        self._qkv = make(
            torch.cat([part.weight.detach() for part in parts]),
            torch.cat([part.bias.detach() for part in parts]),
        )
        self._attention_out = _made(make, _linear(layer, "attention.output.dense"))
        self._inner = _made(make, _linear(layer, "intermediate.dense"))
        self._outer = _made(make, _linear(layer, "output.dense"))
        self._norm_1 = layer.get_submodule("attention.output.LayerNorm")
        self._norm_2 = layer.get_submodule("output.LayerNorm")

    def __call__(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns what follows, (tokens, hidden)."""
        attended = self._attention_out(self._attend(self._qkv(hidden), batch))
        hidden = self._norm_1(attended.add_(hidden))
        inner = functional.gelu(self._inner(hidden))
        return self._norm_2(self._outer(inner).add_(hidden))

    def _attend(self, qkv: torch.Tensor, batch: Batch) -> torch.Tensor:
        size = qkv.shape[1] // 3
        out = qkv.new_empty(qkv.shape[0], size)
        start = 0
        for count, length in batch.groups:
            end = start + count * length
            group = qkv[start:end].view(count, length, 3, self._heads, size // self._heads)
            query, key, value = group.permute(2, 0, 3, 1, 4).unbind(0)
            seen = functional.scaled_dot_product_attention(query, key, value)
            out[start:end] = seen.transpose(1, 2).reshape(count * length, size)
            start = end
        return out


class PackedBody:
    """The whole encoder.

    Args:
        model: Its weights are copied; the embeddings are used as they are.

    Raises:
        ForeignModelError: The model isn't built as this code expects.
    """

    __slots__ = ("_embeddings", "_first_place", "_layers")

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        if (
            not isinstance(model, BertModel | RobertaModel | XLMRobertaModel)
            or getattr(config, "position_embedding_type", "absolute") != "absolute"
            or getattr(config, "hidden_act", "") != "gelu"
            or getattr(config, "is_decoder", False)
        ):
            raise ForeignModelError(f"{type(model).__name__} isn't known here")
        packs = linears.packing(model.dtype, model.device)
        make = linears.pack if packs else linears.plain
        heads = int(config.num_attention_heads)
        layers = model.get_submodule("encoder.layer")
        self._layers = [_Layer(layer, heads, make) for layer in layers.children()]
        self._embeddings = model.get_submodule("embeddings")
        # RoBERTa counts its places from behind the padding's
        padding = getattr(self._embeddings, "padding_idx", None)
        self._first_place = 0 if padding is None else int(padding) + 1

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Returns a vector for each token, (tokens, hidden)."""
        hidden: torch.Tensor = self._embeddings(
            input_ids=batch.ids[None],
            token_type_ids=batch.kinds[None],
            position_ids=batch.places[None] + self._first_place,
        )[0]
        for layer in self._layers:
            hidden = layer(hidden, batch)
        return hidden


def _linear(layer: nn.Module, name: str) -> nn.Linear:
    found = layer.get_submodule(name)
    if not isinstance(found, nn.Linear) or getattr(found, "bias", None) is None:
        raise ForeignModelError(f"{name} isn't a linear layer with a bias")
    return found


def _made(make: Callable[..., linears.Linear], layer: nn.Linear) -> linears.Linear:
    return make(layer.weight.detach(), layer.bias.detach())
