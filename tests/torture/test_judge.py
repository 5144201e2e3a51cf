"""What the judge of the torture says of bytes that two hosts sent."""

import pytest

from tests.torture.judge import lost_or_doubled


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ((42, 42), (58, 58)),
        ((42, 42), (54, 58)),  # the next host's last bytes were read before it wrote that down
        ((38, 42), (58, 58)),  # the broken one was stopped between the two
    ],
)
def test_an_answer_in_two_parts_that_make_it_whole_is_right(
    first: tuple[int, int], rest: tuple[int, int]
) -> None:
    assert lost_or_doubled(100, first, rest) is None


@pytest.mark.parametrize("rest", [(54, 54), (62, 62)])
def test_an_answer_whose_parts_are_too_short_or_too_long_was_lost_or_doubled(
    rest: tuple[int, int],
) -> None:
    what = lost_or_doubled(100, (42, 42), rest)

    assert what == f"{100 - rest[1]} bytes read before the break, 42 to 42 sent"
