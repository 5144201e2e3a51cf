import re
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from orchestrator.reading.quantities import (
    BYTES,
    DURATION_PATTERN,
    SIZE_PATTERN,
    duration_text,
    seconds,
    size,
    size_text,
    text,
    whole,
)


class Sample(BaseModel):
    count: Annotated[int, whole(1, 4096)] = 1
    wait: Annotated[float, seconds(0.001, 3600.0)] = 1.0
    room: Annotated[int, size(1, 2**30)] = 1
    word: Annotated[str, text("[a-z]+", "small letters")] = "a"


def refusal(**values: object) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(values)
    return caught.value.errors()[0].get("ctx", {})


@pytest.mark.parametrize(
    ("written", "meant"),
    [("200ms", 0.2), ("30s", 30.0), ("1.5s", 1.5), ("10m", 600.0), ("1h", 3600.0), ("1ms", 0.001)],
)
def test_a_duration_with_its_unit_becomes_seconds(written: str, meant: float):
    assert Sample.model_validate({"wait": written}).wait == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (30, '"30s"'),
        (0.5, '"0.5s"'),
        ("30.0", '"30.0s"'),
        ("5 sec", '"5s"'),
        ("5 minutes", '"5m"'),
        ("30S", '"30s"'),
        ("20 msec", '"20ms"'),
        ("1hr", '"1h"'),
    ],
)
def test_a_duration_with_another_unit_is_refused_with_the_right_one(written: object, meant: str):
    assert refusal(wait=written)["hint"] == f"did you mean {meant}?"


@pytest.mark.parametrize(
    "written", [None, True, [], {}, "", "s", "-5s", "1e3s", "1d", "5s\n", "٣s", "9" * 5000 + "s"]
)
def test_what_is_no_duration_at_all_is_refused_without_a_guess(written: object):
    found = refusal(wait=written)

    assert found["allowed"] == "a duration from 1ms to 1h with its unit (ms, s, m, h)"
    assert found["hint"] in {"", 'did you mean "5s"?'}


@pytest.mark.parametrize("written", ["0s", "0.5ms", "61m", "2h"])
def test_a_duration_out_of_its_range_is_refused_with_the_range(written: str):
    assert "from 1ms to 1h" in refusal(wait=written)["allowed"]


@pytest.mark.parametrize(("written", "meant"), [("1B", 1), ("512KiB", 524288), ("10MiB", 10485760)])
def test_a_size_with_its_unit_becomes_bytes(written: str, meant: int):
    assert Sample.model_validate({"room": written}).room == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [("10MB", '"10MiB"'), (512, '"512B"'), ("1 gb", '"1GiB"'), ("4k", '"4KiB"')],
)
def test_a_size_with_another_unit_is_refused_with_the_right_one(written: object, meant: str):
    assert refusal(room=written)["hint"] == f"did you mean {meant}?"


@pytest.mark.parametrize("written", ["1.5MiB", "2GiB", "0B", None, True])
def test_a_size_that_is_none_or_out_of_range_is_refused(written: object):
    assert refusal(room=written)["allowed"].startswith("a size from 1B to 1GiB")


@pytest.mark.parametrize("written", [0, 4097, "eight", 1.0, True, None, [1], "99999"])
def test_only_a_whole_number_in_range_is_a_count(written: object):
    assert refusal(count=written) == {"allowed": "a whole number from 1 to 4096", "hint": ""}


def test_a_count_in_quotes_is_refused_with_the_plain_number():
    assert refusal(count="8")["hint"] == "did you mean 8 without quotes?"


@pytest.mark.parametrize("written", ["A", "a\n", "", 1, None])
def test_a_text_must_match_its_pattern_as_a_whole(written: object):
    assert refusal(word=written)["allowed"] == "small letters"


@settings(deadline=None)
@given(st.integers(1, 3_600_000))
def test_every_duration_is_written_so_that_it_reads_the_same(milliseconds: int):
    written = duration_text(milliseconds / 1000)

    assert re.fullmatch(DURATION_PATTERN, written)
    assert Sample.model_validate({"wait": written}).wait == milliseconds / 1000


@settings(deadline=None)
@given(st.integers(1, 2**30))
def test_every_size_is_written_so_that_it_reads_the_same(size_bytes: int):
    written = size_text(size_bytes)

    assert re.fullmatch(SIZE_PATTERN, written)
    assert Sample.model_validate({"room": written}).room == size_bytes


@settings(deadline=None)
@given(st.from_regex(SIZE_PATTERN, fullmatch=True))
def test_a_size_is_accepted_exactly_when_it_is_in_range(written: str):
    match = re.match("([0-9]+)(.*)", written)
    assert match is not None
    inside = len(match[1]) <= 18 and 1 <= int(match[1]) * BYTES[match[2]] <= 2**30

    try:
        Sample.model_validate({"room": written})
        accepted = True
    except ValidationError:
        accepted = False

    assert accepted == inside
