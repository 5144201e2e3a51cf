import pytest

from orchestrator.errors import InvalidRequestError
from orchestrator.runners.torch.wishes import NONE, Wishes, wishes_of


def test_every_wish_is_read_from_the_fields_of_a_body() -> None:
    extra: dict[str, object] = {
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100, "8": 1.5},
        "stop_token_ids": [3, 4],
        "logprobs": True,
        "top_logprobs": 5,
        "user": "ann",
    }

    assert wishes_of(extra) == Wishes(40, 0.05, 1.1, {7: -100.0, 8: 1.5}, (3, 4), 5)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"user": "ann"},
        {"top_k": None, "logit_bias": None, "stop_token_ids": None, "logprobs": None},
        {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "logit_bias": {}, "logprobs": False},
    ],
)
def test_fields_that_ask_for_nothing_are_no_wishes(extra: dict[str, object]) -> None:
    assert wishes_of(extra) == NONE


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"top_k": -2}, "a whole number from 0 to"),
        ({"top_k": 1.5}, "a whole number from 0 to"),
        ({"min_p": 1.5}, "a number from 0 to 1"),
        ({"min_p": True}, "a number from 0 to 1"),
        ({"repetition_penalty": 0}, "a number from 0.01 to 100"),
        ({"repetition_penalty": float("nan")}, "a number from 0.01 to 100"),
        ({"logit_bias": [1]}, "an object of at most 1024 token ids"),
        ({"logit_bias": {"a": 1}}, "an object whose names are token ids"),
        ({"logit_bias": {"-1": 1}}, "an object whose names are token ids"),
        ({"logit_bias": {"1": 101}}, "a number from -100 to 100"),
        ({"stop_token_ids": 7}, "a list of at most 64 token ids"),
        ({"stop_token_ids": [-7]}, "a list of at most 64 token ids"),
        ({"stop_token_ids": [True]}, "a list of at most 64 token ids"),
        ({"logprobs": 3}, "true or false"),
        ({"top_logprobs": 3}, "asked for together with logprobs"),
        ({"top_logprobs": 21}, "a whole number from 0 to 20"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_name(extra: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refusal:
        wishes_of(extra)

    assert refusal.value.param == next(iter(extra))
