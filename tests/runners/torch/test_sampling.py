from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from orchestrator.request import SamplingParams
from orchestrator.runners.torch.sampling import Row, Sampler, gumbel, nucleus
from orchestrator.runners.torch.wishes import Wishes

rows = arrays.arrays(
    np.float32, st.integers(2, 600), elements=st.floats(-30, 30, width=32, allow_nan=False)
)
seeds = st.integers(0, 2**63 - 1)


def sampler(seed: int = 0, **params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), seed)


def softmax(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


@given(rows, seeds)
def test_temperature_zero_takes_the_best_token_whatever_the_seed(row: Row, seed: int) -> None:
    assert sampler(seed, temperature=0).choose(row) == int(row.argmax())


@given(rows, seeds, st.floats(0.1, 2), st.floats(0.05, 1))
def test_the_same_seed_chooses_the_same_tokens_again(
    row: Row, seed: int, temperature: float, top_p: float
) -> None:
    first = sampler(seed, temperature=temperature, top_p=top_p)
    again = sampler(seed, temperature=temperature, top_p=top_p)

    assert [first.choose(row) for _ in range(3)] == [again.choose(row) for _ in range(3)]


@given(rows, st.floats(0.01, 0.999))
def test_a_nucleus_is_the_smallest_set_that_reaches_its_share(row: Row, top_p: float) -> None:
    chances = softmax(row.astype(np.float64))

    tokens = nucleus(row.astype(np.float64), top_p)

    assert len(set(tokens)) == len(tokens)
    assert chances[tokens].sum() >= top_p - 1e-9
    assert chances[tokens[:-1]].sum() < top_p + 1e-9
    outside = np.delete(chances, tokens)
    assert outside.size == 0 or outside.max() <= chances[tokens].min()


@given(rows, seeds, st.floats(0.01, 0.99))
def test_no_token_outside_the_nucleus_is_ever_chosen(row: Row, seed: int, top_p: float) -> None:
    chooser = sampler(seed, top_p=top_p)
    allowed = set(nucleus(row.astype(np.float64), top_p))

    assert all(chooser.choose(row) in allowed for _ in range(5))


def test_tokens_come_as_often_as_their_probability_says() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    chooser = sampler(seed=7)

    counts = np.bincount([chooser.choose(row) for _ in range(20_000)], minlength=4)

    assert counts / 20_000 == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.015)


def test_a_caller_who_names_no_temperature_gets_openais_default_of_one() -> None:
    row = np.linspace(-2, 2, 50, dtype=np.float32)
    silent, spoken = sampler(seed=3), sampler(seed=3, temperature=1.0)

    assert [silent.choose(row) for _ in range(20)] == [spoken.choose(row) for _ in range(20)]


def test_the_noise_of_a_step_depends_on_seed_and_step_alone() -> None:
    assert (gumbel(1, 5, 100) == gumbel(1, 5, 100)).all()
    assert (gumbel(1, 5, 100) == gumbel(1, 5, 200)[:100]).all()
    assert not (gumbel(1, 5, 100) == gumbel(1, 6, 100)).any()
    assert not (gumbel(1, 5, 100) == gumbel(2, 5, 100)).any()
    assert np.isfinite(gumbel(2**63 - 1, 2**31, 1000)).all()


def test_the_noise_is_the_same_in_every_version_of_numpy() -> None:
    # these three numbers are part of the promise that a seed gives the same answer again
    assert gumbel(42, 3, 3) == pytest.approx([-0.2025290193, -1.5725961649, 0.4098651684])


def test_penalties_push_away_what_was_already_said() -> None:
    row = np.array([1.0, 0.9, 0.5], dtype=np.float32)
    presence = sampler(temperature=0, presence_penalty=0.2)
    frequency = sampler(temperature=0, frequency_penalty=0.06)

    assert [presence.choose(row) for _ in range(3)] == [0, 1, 0]
    assert [frequency.choose(row) for _ in range(5)] == [0, 0, 1, 0, 1]
    assert row[0] == 1.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(broken: float) -> None:
    row = np.array([0.0, broken, 1.0], dtype=np.float32)

    with pytest.raises(ValueError, match="not finite"):
        sampler().choose(row)


def wishing(seed: int, wishes: Wishes, **params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), seed, wishes, prompt=(0,))


@given(rows, seeds, st.integers(1, 20))
def test_only_the_most_probable_tokens_are_chosen_where_their_number_is_bounded(
    row: Row, seed: int, count: int
) -> None:
    token = wishing(seed, Wishes(top_k=count)).choose(row)

    assert (row > row[token]).sum() < count


@given(rows, seeds, st.floats(0.01, 1))
def test_no_token_is_chosen_that_is_too_improbable_beside_the_best(
    row: Row, seed: int, share: float
) -> None:
    token = wishing(seed, Wishes(min_p=share)).choose(row)

    chances = softmax(row.astype(np.float64))
    assert chances[token] >= share * chances.max() * (1 - 1e-9)


@given(rows, seeds, st.integers(1, 20), st.floats(0.1, 0.9), st.floats(0.01, 0.9))
def test_several_bounds_leave_what_each_of_them_leaves(
    row: Row, seed: int, count: int, top_p: float, share: float
) -> None:
    token = wishing(seed, Wishes(top_k=count, min_p=share), top_p=top_p).choose(row)

    chances = softmax(row.astype(np.float64))
    assert (row > row[token]).sum() < count
    assert chances[token] >= share * chances.max() * (1 - 1e-9)


def test_a_repeated_token_loses_on_whichever_side_of_nothing_its_score_is() -> None:
    wishes = Wishes(repetition_penalty=2.0)

    assert wishing(0, wishes, temperature=0).choose(np.array([3.0, 2.0], np.float32)) == 1
    assert wishing(0, wishes, temperature=0).choose(np.array([-1.0, -1.5], np.float32)) == 1


def test_a_token_of_the_answer_is_a_repetition_too() -> None:
    chooser = wishing(0, Wishes(repetition_penalty=2.0), temperature=0)
    row = np.array([0.0, 3.0, 2.0], np.float32)

    assert [chooser.choose(row) for _ in range(3)] == [1, 2, 1]


def test_a_bias_moves_a_token_to_the_top_or_out_of_reach() -> None:
    row = np.array([1.0, 2.0, 3.0], np.float32)

    assert wishing(0, Wishes(logit_bias={0: 50.0}), temperature=0).choose(row) == 0
    assert wishing(0, Wishes(logit_bias={2: -100.0}), temperature=0).choose(row) == 1
    assert row.tolist() == [1.0, 2.0, 3.0]
