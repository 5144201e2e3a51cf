"""The Llama family without its modules: one pass for all rows of a step, whatever each is at.

The tokens of all answers go through the linear layers as rows of one matrix; attention goes by
runs: rows of one slab that each get one token, or consecutive tokens of one prompt.

In float32 on a CPU a token's numbers are the same to the last bit whatever goes beside it and
however its prompt was cut: packed linear layers keep rows apart, and attention sees a past whose
padded length depends on the token's own position alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from orchestrator.runners.torch import linears
from orchestrator.runners.torch.linears import Linear
from orchestrator.runners.torch.memory import Memory, Row, Shape, Slab

ALIGNED_ROWS = 4
"""A token's query rows at one key head are filled up to a multiple of it: then they round alike
beside any others, which those that a matrix ends with otherwise don't."""
BLOCK = 8
"""Tokens of a prompt that look at the past together, which is read for all of them at once."""


class UnlikeError(Exception):
    """The model isn't built as the Llama family is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer."""

    before: torch.Tensor
    """Weight of the norm before attention."""
    asked: Linear
    """Queries, keys and values, one behind the other."""
    attended: Linear
    after: torch.Tensor
    """Weight of the norm before the perceptron."""
    grown: Linear
    """What opens the gate, and what goes through it."""
    down: Linear


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens that follow on what a row holds."""

    row: Row
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that attend in one call: `first` to `last` of the pass."""

    slab: Slab
    first: int
    last: int
    rows: slice | int
    """Of the slab, one token each; or the one row that all of them follow in."""
    positions: slice | torch.Tensor
    """Where those of one row stand; or where each head of each row does, all of a layer's heads
    counted through."""
    capacity: int
    mask: torch.Tensor
    block: int = 1
    """Tokens of a prompt that look at the past in one matrix."""


class Lean:
    """A model of the Llama family.

    Args:
        model: What it is made of.
        context: The longest answer, its prompt included.
        packed: Whether weights are packed, see `linears.packing`. Then it has all of them for
            itself, and the model isn't needed any more.

    Raises:
        UnlikeError: The model isn't built like that.
    """

    def __init__(self, model: PreTrainedModel, *, context: int, packed: bool) -> None:
        try:
            self._take(model, context, packed=packed)
        except (AttributeError, TypeError) as error:
            raise UnlikeError(str(error)) from error

    def _take(self, model: PreTrainedModel, context: int, *, packed: bool) -> None:
        config = model.config
        core = model.get_submodule("model")
        if (
            config.hidden_act != "silu"
            or getattr(config, "sliding_window", None) is not None
            or getattr(config, "rope_parameters", {}).get("rope_type") in {"dynamic", "longrope"}
        ):
            raise UnlikeError("another activation, window or rotation")
        self.device, self.dtype = model.device, model.dtype
        self.exact = packed and self.dtype == torch.float32
        """Whether a token's numbers are the same in any company."""
        layer = _packed if packed else _plain
        # one tensor that is used as it was read keeps the whole file of weights in memory
        weight = _copied if packed else _weight
        self._embedding = weight(core.get_submodule("embed_tokens"))
        self._layers = [
            Layer(
                before=weight(one.get_submodule("input_layernorm")),
                asked=layer(one, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                attended=layer(one, "self_attn.o_proj"),
                after=weight(one.get_submodule("post_attention_layernorm")),
                grown=layer(one, "mlp.gate_proj", "mlp.up_proj"),
                down=layer(one, "mlp.down_proj"),
            )
            for one in core.get_submodule("layers").children()
        ]
        self._norm = weight(core.get_submodule("norm"))
        self._epsilon: float = config.rms_norm_eps
        self._head = layer(model, "lm_head")
        heads: int = config.num_attention_heads
        self._heads = heads
        self._key_heads: int = config.num_key_value_heads
        self._width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._groups = heads // self._key_heads
        self._padding = -self._groups % ALIGNED_ROWS if self.exact else 0
        positions = torch.arange(context, device=self.device)[None]
        cosines, sines = core.get_submodule("rotary_emb")(self._embedding[:1], positions)
        self._cosines: torch.Tensor = cosines[0, :, None]
        self._sines: torch.Tensor = sines[0, :, None]

    @property
    def shape(self) -> Shape:
        """What a token leaves behind in a row."""
        return Shape(
            layers=len(self._layers),
            heads=self._key_heads,
            width=self._width,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, memory: Memory, feeds: Sequence[Feed]) -> torch.Tensor:
        """Feeds each row its tokens; returns the logits after the last of each.

        Returns:
            float32, (feeds, vocabulary), on CPU, in the order of `feeds`.
        """
        # rows of one slab side by side attend in one call
        order = sorted(
            range(len(feeds)),
            key=lambda at: (len(feeds[at].tokens) > 1, id(feeds[at].row.slab), feeds[at].row.at),
        )
        sorted_feeds = [feeds[at] for at in order]
        tokens = [token for feed in sorted_feeds for token in feed.tokens]
        places = [
            len(feed.row.tokens) + offset
            for feed in sorted_feeds
            for offset in range(len(feed.tokens))
        ]
        device = self.device
        positions = torch.tensor(places, device=device)
        runs = self._runs(memory, sorted_feeds, positions)
        lasts = torch.tensor([len(feed.tokens) for feed in sorted_feeds]).cumsum(0) - 1
        hidden = self._embedding[torch.tensor(tokens, device=device)]
        hidden = self._through(hidden, positions, runs)[lasts.to(device)]
        logits = self._head(self._normed(hidden, self._norm)).float().cpu()
        for feed in sorted_feeds:
            feed.row.tokens.extend(feed.tokens)
        back = torch.empty(len(order), dtype=torch.int64)
        back[torch.tensor(order)] = torch.arange(len(order))
        return logits[back]

    def _through(
        self, hidden: torch.Tensor, positions: torch.Tensor, runs: Sequence[Run]
    ) -> torch.Tensor:
        count = len(hidden)
        cosines, sines = self._cosines[positions], self._sines[positions]
        for number, layer in enumerate(self._layers):
            normed = self._normed(hidden, layer.before)
            asked = layer.asked(normed).view(count, -1, self._width)
            turned = _rotated(asked[:, : -self._key_heads], cosines, sines)
            queries, keys = turned[:, : self._heads], turned[:, self._heads :]
            values = asked[:, -self._key_heads :]
            seen = [self._attend(number, run, queries, keys, values) for run in runs]
            attended = seen[0] if len(seen) == 1 else torch.cat(seen)
            hidden = hidden + layer.attended(attended)
            normed = self._normed(hidden, layer.after)
            gate, up = layer.grown(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return hidden

    def _attend(
        self,
        number: int,
        run: Run,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Stores what the tokens leave behind and looks at all that they may see."""
        part = slice(run.first, run.last)
        all_keys, all_values = run.slab.keys[number], run.slab.values[number]
        if isinstance(run.positions, torch.Tensor):
            _put(all_keys, run.positions, keys[part])
            _put(all_values, run.positions, values[part])
            seen_keys = all_keys[run.rows, :, : run.capacity]
            seen_values = all_values[run.rows, :, : run.capacity]
        else:
            all_keys[run.rows, :, run.positions] = keys[part].transpose(0, 1)
            all_values[run.rows, :, run.positions] = values[part].transpose(0, 1)
            seen_keys = all_keys[run.rows][None, :, : run.capacity]
            seen_values = all_values[run.rows][None, :, : run.capacity]
            if not self.exact:
                return self._attend_prompt(queries[part], seen_keys, seen_values, run.mask)
            return self._attend_blocks(queries[part], seen_keys, seen_values, run)
        found = functional.scaled_dot_product_attention(
            self._asked(queries[part]), seen_keys, seen_values, attn_mask=run.mask
        )
        return found[:, :, : self._groups].reshape(run.last - run.first, -1)

    def _attend_blocks(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, run: Run
    ) -> torch.Tensor:
        """Consecutive tokens of one prompt, each with the numbers that it has alone."""
        asked = self._asked(queries)
        heads, rows, width = asked.shape[1:]
        blocks = asked.view(-1, run.block, heads, rows, width).transpose(1, 2)
        count = len(blocks)
        found = functional.scaled_dot_product_attention(
            blocks.reshape(count, heads, run.block * rows, width),
            keys.expand(count, -1, -1, -1),
            values.expand(count, -1, -1, -1),
            attn_mask=run.mask,
        )
        found = found.view(count, heads, run.block, rows, width).transpose(1, 2)
        return found[..., : self._groups, :].reshape(len(queries), -1)

    def _asked(self, queries: torch.Tensor) -> torch.Tensor:
        """The heads that share a key head are the rows of one query, so no key is repeated."""
        asked = queries.view(len(queries), self._key_heads, self._groups, self._width)
        return functional.pad(asked, (0, 0, 0, self._padding)) if self._padding else asked

    def _attend_prompt(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        found = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True
        )
        return found[0].transpose(0, 1).reshape(len(queries), -1)

    def _runs(self, memory: Memory, feeds: Sequence[Feed], positions: torch.Tensor) -> list[Run]:
        """Cuts a pass into runs; `feeds` come sorted by slab and row, those of one token first."""
        runs: list[Run] = []
        at = 0
        number = 0
        while number < len(feeds):
            feed = feeds[number]
            if len(feed.tokens) > 1:
                runs.extend(self._prompt_runs(memory, feed, at))
                at += len(feed.tokens)
                number += 1
                continue
            size = memory.size_for(len(feed.row.tokens) + 1)
            end = number + 1
            while (
                end < len(feeds)
                and len(feeds[end].tokens) == 1
                and feeds[end].row.slab is feed.row.slab
                and feeds[end].row.at == feed.row.at + end - number
                and memory.size_for(len(feeds[end].row.tokens) + 1) == size
            ):
                end += 1
            last = at + end - number
            rows = slice(feed.row.at, feed.row.at + end - number)
            mask = self._mask(positions[at:last], size)[:, None, None]
            heads = torch.arange(
                rows.start * self._key_heads, rows.stop * self._key_heads, device=self.device
            )
            stand = heads.view(-1, self._key_heads) * feed.row.slab.capacity
            stand = (stand + positions[at:last, None]).flatten()
            runs.append(Run(feed.row.slab, at, last, rows, stand, size, mask))
            at, number = last, end
        return runs

    def _prompt_runs(self, memory: Memory, feed: Feed, at: int) -> list[Run]:
        runs: list[Run] = []
        start = len(feed.row.tokens)
        stop = start + len(feed.tokens)
        while start < stop:
            size, end, block = stop, stop, 1
            if self.exact:
                size = memory.size_for(start + 1)
                end = min(stop, size)
                block = min(BLOCK, end - start)
                end -= (end - start) % block
            mask = self._mask(torch.arange(start, end, device=self.device), size)
            if self.exact:
                rows = self._groups + self._padding
                mask = mask.repeat_interleave(rows, 0).view(-1, 1, block * rows, size)
            last = at + end - start
            place = slice(start, end)
            runs.append(Run(feed.row.slab, at, last, feed.row.at, place, size, mask, block))
            at, start = last, end
        return runs

    def _mask(self, positions: torch.Tensor, size: int) -> torch.Tensor:
        """Added to the scores: nothing for what a token may see, minus infinity for the rest."""
        unseen = torch.arange(size, device=self.device)[None] > positions[:, None]
        mask = torch.zeros(unseen.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(unseen, float("-inf"))

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)


def _packed(parent: nn.Module, *names: str) -> Linear:
    """One layer of several, which is one call for all of them."""
    modules = [parent.get_submodule(name) for name in names]
    weights, biases = [_weight(one) for one in modules], [_bias(one) for one in modules]
    if all(bias is None for bias in biases):
        return linears.pack(torch.cat(weights), None)
    filled = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return linears.pack(torch.cat(weights), torch.cat(filled))


def _plain(parent: nn.Module, *names: str) -> Linear:
    """Several layers side by side, with the model's own weights."""
    modules = [parent.get_submodule(name) for name in names]
    layers = [linears.plain(_weight(one), _bias(one)) for one in modules]
    if len(layers) == 1:
        return layers[0]
    return lambda rows: torch.cat([layer(rows) for layer in layers], dim=-1)


def _bias(module: nn.Module) -> torch.Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach()


def _copied(module: nn.Module) -> torch.Tensor:
    return _weight(module).clone()


def _weight(module: nn.Module) -> torch.Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise UnlikeError(f"{type(module).__name__} has no weight")
    return weight.detach()


def _put(part: torch.Tensor, places: torch.Tensor, states: torch.Tensor) -> None:
    """Puts the heads of some tokens, (tokens, heads, width), where they stand in a slab."""
    width = states.shape[-1]
    part.view(-1, width).index_copy_(0, places, states.reshape(-1, width))


def _rotated(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat((-second, first), dim=-1) * sines
