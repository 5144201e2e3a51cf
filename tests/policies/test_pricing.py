"""Prices are found by the beginnings of names, and money is whole numbers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.events import Usage
from orchestrator.policies.pricing import PICO_PER_USD_PER_MILLION, Price, PriceTable, usd_text

counts = st.integers(0, 10_000_000)


def price(
    given_input: float = 1, output: float = 2, *, cached: float = 0.5, reasoning: float = 3
) -> Price:
    """In USD for a million tokens, as the configuration has it."""
    return Price(
        input=round(given_input * PICO_PER_USD_PER_MILLION),
        cached_input=round(cached * PICO_PER_USD_PER_MILLION),
        output=round(output * PICO_PER_USD_PER_MILLION),
        reasoning=round(reasoning * PICO_PER_USD_PER_MILLION),
    )


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4o", 1),
        ("gpt-4o-2024-08-06", 1),
        ("gpt-4o-mini-2024-07-18", 2),
        ("gpt-4", None),
        ("", None),
        ("my-gpt-4o", None),
    ],
)
def test_the_longest_name_that_fits_is_the_price(model: str, found: int | None) -> None:
    table = PriceTable({"gpt-4o": price(1), "gpt-4o-mini": price(2)})

    assert table.find(model) == (None if found is None else price(found))


def test_cached_and_reasoning_tokens_have_prices_of_their_own() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=400, reasoning_tokens=60)

    # 600 at 1 USD, 400 at 0.50, 40 at 2 and 60 at 3, for a million each
    assert price().cost(usage) == 600_000 + 200_000 + 80_000 + 180_000


def test_a_provider_that_counts_more_cached_tokens_than_there_are_is_not_believed() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=0, cached_tokens=1000)

    assert price().cost(usage) == 5_000


@settings(deadline=None)
@given(counts, counts, counts, counts)
def test_no_cost_is_below_zero_or_above_the_dearest_kind(
    prompt: int, completion: int, cached: int, reasoning: int
) -> None:
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )

    assert 0 <= price().cost(usage) <= 1000 * prompt + 3000 * completion


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (None, "unknown"),
        (0, "0.00"),
        (1, "0.000000001"),
        (1_500_000_000, "1.50"),
        (-1, "-0.000000001"),
    ],
)
def test_an_amount_is_told_with_the_digits_it_needs(nano_usd: int | None, text: str) -> None:
    assert usd_text(nano_usd) == text
