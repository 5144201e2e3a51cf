import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runners.torch.memory import Memory, Row, Shape
from orchestrator.runners.torch.prefixes import BLOCK, Prefixes

SHAPE = Shape(layers=1, heads=1, width=1, dtype=torch.float32, device=torch.device("cpu"))
prompts = st.lists(st.sampled_from(["a" * 40, "b" * 32, "c" * 5, "d" * 70]), max_size=4).map(
    lambda parts: [ord(letter) for letter in "".join(parts)]
)


def rows(contents: list[list[int]], prefixes: Prefixes) -> list[Row]:
    memory = Memory(SHAPE, tokens=1 << 16, longest=512)
    made: list[Row] = []
    for content in contents:
        row = memory.open(len(content) + 1)
        row.tokens = content
        prefixes.note(row)
        made.append(row)
    return made


def common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@given(st.lists(prompts, max_size=6), prompts)
def test_what_is_found_is_as_long_as_any_row_has_whole_blocks_of_it(
    contents: list[list[int]], asked: list[int]
) -> None:
    prefixes = Prefixes()
    rows(contents, prefixes)

    row, length = prefixes.find(asked)

    best = max((common(one, asked) for one in contents), default=0)
    assert length // BLOCK == best // BLOCK
    assert (row is None) == (length == 0)
    if row is not None:
        assert row.tokens[:length] == asked[:length]


def test_a_forgotten_row_is_never_found_again() -> None:
    prefixes = Prefixes()
    (row,) = rows([[1] * 100], prefixes)

    prefixes.forget(row)

    assert prefixes.find([1] * 100) == (None, 0)
    assert len(prefixes) == 0
