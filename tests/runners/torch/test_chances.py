import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from orchestrator.runners.torch.chances import IMPOSSIBLE, tell
from orchestrator.runners.torch.sampling import Row

rows = arrays.arrays(
    np.float32, st.integers(2, 100), elements=st.floats(-30, 30, width=32, allow_nan=False)
)


@given(rows, st.integers(0, 20), st.data())
def test_the_best_tokens_are_told_with_their_probabilities(
    row: Row, alternatives: int, data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(row) - 1))

    told = tell(row, token, alternatives, str)

    chances = np.exp(row.astype(np.float64))
    chances /= chances.sum()
    assert told.token == str(token)
    assert np.exp(told.logprob) == pytest.approx(chances[token])
    best = sorted(chances, reverse=True)[:alternatives]
    assert [np.exp(one.logprob) for one in told.top_logprobs] == pytest.approx(best)
    assert len({one.token for one in told.top_logprobs}) == min(alternatives, len(row))


def test_the_bytes_of_a_token_are_told_unless_it_is_a_part_of_a_character() -> None:
    names = {0: "é", 1: "\ufffd"}
    row = np.array([1.0, 0.0], np.float32)

    told = tell(row, 0, 2, names.__getitem__)

    assert told.bytes == [0xC3, 0xA9]
    assert [one.bytes for one in told.top_logprobs] == [[0xC3, 0xA9], None]


def test_an_impossible_token_has_a_number_that_json_knows() -> None:
    row = np.array([0.0, -np.inf], np.float32)

    assert tell(row, 1, 0, str).logprob == IMPOSSIBLE
