"""Answers that prove themselves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chaos.stub.words import FOREIGN, Listener, asked, prompt, word


@given(st.integers(0, 200), st.lists(st.integers(1, 9), max_size=60))
@settings(deadline=None)
def test_however_an_answer_is_cut_its_tokens_are_heard(tokens: int, cuts: list[int]) -> None:
    text = "".join(word(number, "r1") for number in range(tokens))
    listener, found = Listener("r1"), list[int]()

    for size in cuts:
        piece, text = text[:size], text[size:]
        found += listener.hear(piece)
    found += listener.hear(text)

    assert found == list(range(tokens))


def test_a_token_of_another_answer_is_foreign() -> None:
    assert Listener("r1").hear(word(0, "r2")) == [FOREIGN]


def test_text_that_is_no_token_is_foreign_once_it_is_too_long() -> None:
    assert Listener("r1").hear("Once upon a time there was a stub that could not count.") == [
        FOREIGN
    ]


def test_a_prompt_says_how_much_is_asked_for_and_by_whom() -> None:
    assert asked(prompt(12, "r-7")) == (12, "r-7")
    assert asked("Tell me a joke.")[0] > 0
