"""A simulated provider's own limit: kept as it is, whatever is told of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chaos.simulation.plan import Hint, Quota, Telling
from orchestrator.chaos.simulation.quota import Bucket, hinted

TRUE: list[Telling] = ["openai", "anthropic"]


@given(steps=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.7, 9.0]), st.booleans())))
def test_no_window_is_given_more_than_the_bucket_and_what_it_fills(
    steps: list[tuple[float, bool]],
) -> None:
    bucket, now, taken = Bucket(Quota(per_minute=12.0)), 0.0, 0

    for wait, _ in steps:
        now += wait
        taken += bucket.take(now)

        assert taken <= 12 + 12 * now / 60 + 1e-9


@pytest.mark.parametrize("telling", TRUE)
def test_what_it_tells_is_what_it_has_through_the_readers_of_real_headers(
    telling: Telling,
) -> None:
    bucket = Bucket(Quota(per_minute=12.0))
    for _ in range(9):
        assert bucket.take(0.25)

    standing = bucket.standing(telling, 0.25)

    assert standing is not None
    assert standing[0] is not None
    assert (standing[0].limit, standing[0].remaining) == (12.0, 3.0)
    assert standing[0].reset_after is not None
    assert 45.0 <= standing[0].reset_after < 46.1  # never sooner than it is true


def test_one_that_lies_or_says_nothing_keeps_its_limit_all_the_same() -> None:
    bucket = Bucket(Quota(per_minute=12.0))

    for telling in ("more", "less", "nothing"):
        bucket.standing(telling, 0.0)
    taken = sum(bucket.take(0.0) for _ in range(20))

    assert taken == 12
    assert bucket.wait(0.0) == pytest.approx(5.0)


@pytest.mark.parametrize("form", ["seconds", "fraction", "milliseconds", "date"])
def test_a_hint_in_any_form_is_understood_as_no_sooner_than_it_was_meant(form: Hint) -> None:
    understood = hinted(form, 2.34, 17.8)

    assert understood is not None
    assert 2.34 - 1e-9 <= understood <= 4.0
    assert hinted("none", 2.34, 17.8) is None
    assert hinted("past", 2.34, 17.8) == 0.0
