"""Linear layers whose weights are laid out once for the processor, where torch can do that.

On a CPU oneDNN reads a weight of its own layout up to 2.7 times as fast as torch's, and it gives a
row the same result to the last bit whatever rows stand beside it, which `F.linear` doesn't. The two
operations are private ones of torch (its compiler emits them), so they are tried on the spot; where
they are missing or wrong, and on a GPU, `F.linear` does it.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]
"""From (tokens, in) to (tokens, out), of the weight's dtype."""

LAYOUT_ROWS = 16
"""Rows that the layout is chosen for; any number may come."""
PROBE_ROWS = 5
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def packing(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this kind can be packed here, and rows then don't see each other."""
    if device.type != "cpu" or dtype not in TOLERANCE:
        return False
    chance = torch.Generator().manual_seed(1)
    weight = torch.randn(96, 64, generator=chance).to(dtype)
    rows = torch.randn(PROBE_ROWS, 64, generator=chance).to(dtype)
    try:
        packed = pack(weight, None)
        together = packed(rows)
        alone = torch.cat([packed(row[None]) for row in rows])
    except Exception:  # noqa: BLE001 - a private operation may fail in any way: then it isn't used
        return False
    expected = functional.linear(rows, weight)
    error = (together - expected).abs().max() / expected.abs().max()
    return torch.equal(together, alone) and bool(error < TOLERANCE[dtype])


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Returns the layer with a packed copy of its weight; see `packing`.

    Args:
        weight: (out, in), on the CPU.
        bias: (out,), or None.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, LAYOUT_ROWS)  # noqa: SLF001 - see above
    run = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 - see above
    return lambda rows: run(rows, packed, bias, "none", [], "")


def plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Returns the layer as torch has it; arguments as for `pack`, on any device."""
    return lambda rows: functional.linear(rows, weight, bias)
