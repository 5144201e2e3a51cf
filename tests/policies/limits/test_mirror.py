"""What a provider says is left bounds what is sent, and a lie bounds it for a while only."""

import hypothesis.strategies as st
from hypothesis import given, settings

from orchestrator.policies.limits.mirror import Mirror
from orchestrator.standing import Allowance


def told(remaining: float, *, limit: float | None = 60.0, reset: float | None = None) -> Allowance:
    return Allowance(remaining=remaining, limit=limit, reset_after=reset)


def test_only_what_is_left_may_be_sent() -> None:
    mirror = Mirror(told(3.0, reset=57.0), 0.0, 0.0)

    sent = 0
    while mirror.has_room(1.0, 0.0):
        mirror.take(1.0, 0.0)
        sent += 1

    assert sent == 3
    assert mirror.ready_at(1.0, 0.0) == 1.0


def test_what_is_still_on_its_way_is_taken_off() -> None:
    mirror = Mirror(told(5.0, reset=55.0), 4.0, 0.0)

    mirror.take(1.0, 0.0)

    assert not mirror.has_room(1.0, 0.0)


def test_an_older_answer_that_comes_late_gives_nothing_back() -> None:
    mirror = Mirror(told(2.0, reset=58.0), 0.0, 0.0)

    mirror.hear(told(9.0, reset=51.0), 0.0, 0.0)

    assert mirror.has_room(2.0, 0.0)
    assert not mirror.has_room(3.0, 0.0)


def test_a_limit_that_was_raised_counts_at_once() -> None:
    mirror = Mirror(told(0.0, reset=60.0), 0.0, 0.0)

    mirror.hear(told(500.0, limit=600.0, reset=10.0), 0.0, 0.0)

    assert mirror.has_room(500.0, 0.0)


def test_what_is_left_comes_back_until_the_reset() -> None:
    mirror = Mirror(told(0.0, reset=30.0), 0.0, 0.0)

    assert mirror.ready_at(1.0, 0.0) == 0.5
    assert not mirror.has_room(60.0, 29.0)
    assert mirror.has_room(60.0, 30.0)


def test_a_request_larger_than_all_is_sent_when_all_is_there() -> None:
    mirror = Mirror(told(60.0), 0.0, 0.0)

    assert mirror.has_room(1000.0, 0.0)


def test_a_provider_that_always_says_nothing_is_left_is_looked_at_once_a_minute() -> None:
    mirror, sent = Mirror(told(0.0, limit=1.0, reset=86_400.0), 0.0, 0.0), 0
    for second in range(600):
        if mirror.has_room(1.0, float(second)):
            mirror.take(1.0, float(second))
            mirror.hear(told(0.0, limit=1.0, reset=86_400.0), 0.0, float(second))
            sent += 1

    assert sent == 9


def test_a_lie_that_is_not_repeated_is_forgotten_after_ten_minutes() -> None:
    mirror = Mirror(told(0.0, limit=100.0, reset=1e9), 0.0, 0.0)

    assert mirror.has_room(100.0, 601.0)


def test_what_was_not_sent_is_given_back_up_to_the_limit() -> None:
    mirror = Mirror(told(60.0), 0.0, 0.0)
    mirror.take(10.0, 0.0)

    mirror.give_back(10.0)
    mirror.give_back(10.0)

    assert mirror.has_room(60.0, 0.0)
    mirror.take(60.0, 0.0)
    assert not mirror.has_room(1.0, 0.0)


@settings(max_examples=200, deadline=None)
@given(
    limit=st.integers(1, 100),
    waits=st.lists(st.sampled_from([0.0, 0.01, 0.5, 3.0, 20.0]), min_size=1, max_size=80),
    lag=st.integers(0, 6),
)
def test_a_bucket_at_the_provider_is_never_overdrawn_however_late_its_word_is(
    limit: int, waits: list[float], lag: int
) -> None:
    # the provider's own bucket; its answers are heard so many requests later
    left, at, now = float(limit), 0.0, 0.0
    mirror: Mirror | None = None
    answers: list[Allowance] = []
    heard = 0
    for sent, wait in enumerate(waits):
        now += wait
        if mirror is not None and not mirror.has_room(1.0, now):
            now = mirror.ready_at(1.0, now)
            if not mirror.has_room(1.0, now):  # by a rounding
                now += 1e-6
        left, at = min(limit, left + limit / 60.0 * (now - at)), now
        first = mirror is None and heard < 1
        assert left >= 1 - 1e-3 or first
        if mirror is not None:
            mirror.take(1.0, now)
        left -= 1
        answers.append(told(max(0.0, left), limit=limit, reset=(limit - left) * 60.0 / limit))
        if len(answers) - heard > lag or mirror is None:
            unheard = float(len(answers) - heard - 1)
            if mirror is None:
                mirror = Mirror(answers[heard], unheard, now)
            else:
                mirror.hear(answers[heard], unheard, now)
            heard += 1
        assert sent + 1 == len(answers)
