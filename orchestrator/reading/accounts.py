"""What requests cost, what may be spent, and where it is written down."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestrator.reading.quantities import money, whole, wrong
from orchestrator.reading.references import place_of_a_file
from orchestrator.reading.sections import NonEmpty, Section

PER_TOKEN_PLACES = 6
"""One USD for a million tokens is 10^6 times 10^-12 USD for one."""
NANO_PLACES = 9


class Price(Section):
    """What a million tokens of a model cost, in USD."""

    input: Annotated[int, money(PER_TOKEN_PLACES)]
    """Of the prompt."""
    output: Annotated[int, money(PER_TOKEN_PLACES)]
    """Of the answer."""
    cached_input: Annotated[int, money(PER_TOKEN_PLACES)] | None = None
    """Of the prompt, served from the provider's cache; null is the price of input."""
    reasoning: Annotated[int, money(PER_TOKEN_PLACES)] | None = None
    """Of the answer, spent on reasoning; null is the price of output."""


class Budget(Section):
    """What may be spent in a time, by one caller, route or deployment, or by each."""

    caller: NonEmpty | None = None
    """A caller's name, or * for each caller on its own."""
    route: NonEmpty | None = None
    """A model name that callers use, or * for each."""
    deployment: NonEmpty | None = None
    """A deployment's name, or * for each; one without budget is passed over for the next."""
    per: Literal["hour", "day", "month"]
    """The calendar's hour, day or month, in UTC."""
    usd: Annotated[int, money(NANO_PLACES)] | None = None
    """How much money; each model that it covers needs a price in `prices`."""
    tokens: Annotated[int, whole(1, 10**15)] | None = None
    """Or how many tokens, prompts and answers together."""
    unknown_price: Literal["refuse", "allow"] = "refuse"
    """refuse: models that it covers without a price are an error; allow: what they are asked counts
    nothing, for nobody knows what it costs."""
    on_exceeded: Literal["reject", "throttle", "warn"] = "reject"
    """reject: 429 until the time is over; throttle: one request at a time, after all others; warn:
    a line in the log."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.caller, self.route, self.deployment).count(None) != 2:  # noqa: PLR2004 - of three
            raise wrong("one of caller, route and deployment is needed, and no more")
        if (self.usd is None) == (self.tokens is None):
            raise wrong("one of usd and tokens is needed, and no more")
        return self


class Ledger(Section):
    """Where every request that has ended is written down, with its tokens and its cost."""

    path: Annotated[Path, place_of_a_file()] = Field(
        default="usage.sqlite3",
        validate_default=True,
    )
    """SQLite file; it is made if it isn't there, and its spool lies beside it."""
    on_failure: Literal["serve", "refuse"] = "serve"
    """While it can't be written: serve goes on without, refuse answers 503."""
