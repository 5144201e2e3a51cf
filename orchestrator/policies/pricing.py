"""What an answer costs: a table of prices by the beginnings of model names.

Rules:
    1. The longest name in the table that a model's name begins with is its price: providers add
       dates and versions to names, and a price is for the family.
    2. A model that no entry fits has no price. Unknown stays unknown (None); it is never 0.
    3. Money is whole numbers, of 10^-12 USD for one token and of 10^-9 USD for one request, so that
       sums don't depend on their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.events import Usage

PICO_PER_NANO = 1000
PICO_PER_USD_PER_MILLION = 1_000_000
"""One USD for a million tokens is so many 10^-12 USD for one."""
NANO_PER_USD = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What tokens of each kind cost, in 10^-12 USD for one token."""

    input: int
    cached_input: int
    """Prompt that the provider served from its cache."""
    output: int
    reasoning: int

    def cost(self, usage: Usage) -> int:
        """Returns the cost in 10^-9 USD, rounded to the nearest.

        Cached tokens are part of the prompt and reasoning tokens part of the completion, as
        `Usage` says; a provider that counts more of them than there are is not believed.
        """
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
        pico = (
            (usage.prompt_tokens - cached) * self.input
            + cached * self.cached_input
            + (usage.completion_tokens - reasoning) * self.output
            + reasoning * self.reasoning
        )
        return (pico + PICO_PER_NANO // 2) // PICO_PER_NANO


class PriceTable:
    """All prices.

    Args:
        prices: By the beginning of a model's name.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        # the longest first, so that the first that fits is the one
        self._prices = sorted(prices.items(), key=lambda entry: len(entry[0]), reverse=True)

    def find(self, model: str) -> Price | None:
        """Finds the price of a model; None if it isn't known. For a deployment's start, not more.

        Args:
            model: Its full name, as the provider knows it.
        """
        return next((price for name, price in self._prices if model.startswith(name)), None)


def usd_text(nano_usd: int | None) -> str:
    """Writes an amount for people: as many digits as it takes, at least cents."""
    if nano_usd is None:
        return "unknown"
    sign = "-" if nano_usd < 0 else ""
    whole, rest = divmod(abs(nano_usd), NANO_PER_USD)
    digits = f"{rest:09d}"
    return f"{sign}{whole}.{digits[:2]}{digits[2:].rstrip('0')}"
