"""What a request may wish of a local model besides what every provider knows.

They come as further fields of the body. A wrong one is refused by its name before the request is
queued; the host gets what is read here.
"""

from collections.abc import Mapping
from typing import cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.runners.torch import forms
from orchestrator.runners.torch.forms import Form, form_of

MOST_ALTERNATIVES = 20
MOST_BIASES = 1024
MOST_ENDS = 64
MOST_KEPT = 1 << 20
"""More tokens than any vocabulary has."""
DEEPEST_BIAS = 100.0
FIELDS = forms.FIELDS | frozenset(
    {
        "top_k",
        "min_p",
        "repetition_penalty",
        "logit_bias",
        "stop_token_ids",
        "logprobs",
        "top_logprobs",
    }
)

Fields = Mapping[str, object]


class Wishes(msgspec.Struct, frozen=True, array_like=True):
    """How one answer's tokens are chosen and told, beyond `SamplingParams`."""

    top_k: int = 0
    """Only so many of the most probable tokens are chosen from; 0 is all."""
    min_p: float = 0.0
    """Only tokens that are at least this share as probable as the best one."""
    repetition_penalty: float = 1.0
    """Above 1 makes a token less probable that the prompt or the answer has already."""
    logit_bias: dict[int, float] = {}
    """What is added to the scores of tokens, by their ids."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer and are no part of its text."""
    alternatives: int | None = None
    """Tokens whose log-probabilities are told beside each chosen one's; None tells nothing."""
    form: Form | None = None
    """What the text has to match; None leaves it free."""


NONE = Wishes()


def wishes_of(extra: Fields) -> Wishes:
    """Reads them from the further fields of a body.

    Raises:
        InvalidRequestError: One of them is wrong; `param` names it.
    """
    if extra.keys().isdisjoint(FIELDS):
        return NONE
    return Wishes(
        top_k=_top_k(extra),
        min_p=_number(extra, "min_p", 0.0, low=0.0, high=1.0),
        repetition_penalty=_number(extra, "repetition_penalty", 1.0, low=0.01, high=100.0),
        logit_bias=_biases(extra),
        stop_token_ids=_ends(extra),
        alternatives=_alternatives(extra),
        form=form_of(extra),
    )


def _top_k(extra: Fields) -> int:
    # -1 is what other servers take for no bound
    return 0 if extra.get("top_k") == -1 else _whole(extra, "top_k", 0, high=MOST_KEPT)


def _biases(extra: Fields) -> dict[int, float]:
    given = extra.get("logit_bias")
    if given is None:
        return {}
    if not isinstance(given, Mapping) or len(cast("Fields", given)) > MOST_BIASES:
        raise _wrong("logit_bias", f"an object of at most {MOST_BIASES} token ids and numbers")
    biases = cast("Fields", given)
    if not all(key.isascii() and key.isdecimal() for key in biases):
        raise _wrong("logit_bias", "an object whose names are token ids")
    return {
        int(key): _in_range("logit_bias", value, low=-DEEPEST_BIAS, high=DEEPEST_BIAS)
        for key, value in biases.items()
    }


def _ends(extra: Fields) -> tuple[int, ...]:
    given = extra.get("stop_token_ids")
    if given is None:
        return ()
    ends = cast("list[object]", given) if isinstance(given, list) else [None]
    if len(ends) > MOST_ENDS or not all(type(end) is int and end >= 0 for end in ends):
        raise _wrong("stop_token_ids", f"a list of at most {MOST_ENDS} token ids")
    return tuple(cast("list[int]", ends))


def _alternatives(extra: Fields) -> int | None:
    wanted = extra.get("logprobs")
    count = _whole(extra, "top_logprobs", 0, high=MOST_ALTERNATIVES)
    if wanted is None or wanted is False:
        if count:
            raise _wrong("top_logprobs", "asked for together with logprobs")
        return None
    if wanted is not True:
        raise _wrong("logprobs", "true or false")
    return count


def _whole(extra: Fields, name: str, default: int, *, high: int) -> int:
    value = extra.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= high:
        raise _wrong(name, f"a whole number from 0 to {high}")
    return value


def _number(extra: Fields, name: str, default: float, *, low: float, high: float) -> float:
    value = extra.get(name)
    return default if value is None else _in_range(name, value, low=low, high=high)


def _in_range(name: str, value: object, *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _wrong(name, f"a number from {low:g} to {high:g}")
    return float(value)


def _wrong(name: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {what}", param=name)
