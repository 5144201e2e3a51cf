"""A token's logits are the same to the last bit, whatever goes beside it and however it is cut."""

from copy import deepcopy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.runners.torch.lean import Feed, Lean, UnlikeError
from orchestrator.runners.torch.linears import packing, plain
from orchestrator.runners.torch.memory import Memory, Row
from tests.runners.torch import tiny

MODEL = tiny.loaded().model
EXACT = deepcopy(MODEL).double()
LEAN = Lean(MODEL, context=tiny.CONTEXT, packed=packing(MODEL.dtype, MODEL.device))
prompts = st.lists(st.integers(0, 275), min_size=2, max_size=200)


def memory() -> Memory:
    return Memory(LEAN.shape, tokens=1 << 15, longest=tiny.CONTEXT)


def read(rows: Memory, prompt: list[int], cuts: list[int]) -> tuple[Row, torch.Tensor]:
    row = rows.open(len(prompt) + 1)
    logits = torch.empty(0)
    for start, end in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        (logits,) = LEAN.forward(rows, [Feed(row, prompt[start:end])])
    return row, logits


@settings(max_examples=25, deadline=None)
@given(prompts)
@example([66, 96, 221, 229, 1, 1, 91])
def test_the_logits_are_as_near_to_the_exact_ones_as_those_of_transformers(
    prompt: list[int],
) -> None:
    # random weights blow a rounding up, of either, by as much as the prompt will have it
    with torch.inference_mode():
        theirs = MODEL(torch.tensor([prompt])).logits[0, -1]
        exact = EXACT(torch.tensor([prompt])).logits[0, -1]

    _, logits = read(memory(), prompt, [])

    assert (logits - exact).abs().max() < 1e-3 + 2 * (theirs - exact).abs().max()


@settings(max_examples=25, deadline=None)
@given(prompts, st.data())
@pytest.mark.skipif(not LEAN.exact, reason="this processor's linear layers can't be packed")
def test_a_prompt_has_the_same_logits_however_it_is_cut(
    prompt: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(prompt) - 1), max_size=4)))
    rows = memory()

    _, whole = read(rows, prompt, [])
    _, cut = read(rows, prompt, cuts)
    _, single = read(rows, prompt, list(range(1, len(prompt))))

    assert torch.equal(whole, cut)
    assert torch.equal(whole, single)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.skipif(not LEAN.exact, reason="this processor's linear layers can't be packed")
def test_rows_side_by_side_have_the_logits_that_each_has_alone(threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        lean = Lean(MODEL, context=tiny.CONTEXT, packed=True)
        chance = torch.Generator().manual_seed(5)
        sizes = (5, 63, 64, 65, 200, 3)
        asked = [torch.randint(0, 276, (size,), generator=chance).tolist() for size in sizes]
        alone: list[torch.Tensor] = []
        for prompt in asked:
            rows = Memory(lean.shape, tokens=1 << 13, longest=tiny.CONTEXT)
            row = rows.open(len(prompt) + 1)
            lean.forward(rows, [Feed(row, prompt[:-1])])
            alone.append(lean.forward(rows, [Feed(row, prompt[-1:])])[0])
        rows = Memory(lean.shape, tokens=1 << 14, longest=tiny.CONTEXT)
        places = [rows.open(len(prompt) + 1) for prompt in asked]
        lean.forward(rows, [Feed(row, one[:-1]) for row, one in zip(places, asked, strict=True)])

        # one still reads its prompt while the others write
        long = Feed(rows.open(100), list(range(90)))
        feeds = [Feed(row, one[-1:]) for row, one in zip(places, asked, strict=True)]
        together = lean.forward(rows, [long, *feeds])[1:]
    finally:
        torch.set_num_threads(1)

    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_model_that_is_built_otherwise_is_refused() -> None:
    other = tiny.loaded().model
    other.config.hidden_act = "gelu"

    with pytest.raises(UnlikeError):
        Lean(other, context=tiny.CONTEXT, packed=False)


def test_a_plain_layer_is_torchs_own_with_its_bias() -> None:
    weight, bias, rows = torch.randn(4, 3), torch.randn(4), torch.randn(2, 3)

    assert torch.allclose(plain(weight, bias)(rows), rows @ weight.T + bias, atol=1e-5)
