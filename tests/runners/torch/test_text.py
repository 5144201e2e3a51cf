import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from orchestrator.runners.torch.calls import Call
from orchestrator.runners.torch.text import REPLACEMENT, AnswerText, Detokenizer, StopGuard
from tests.runners.torch import tiny

SAMPLES = [
    "plain words, 12 of them",
    "🦊🚀 emoji 👩‍👩‍👧‍👦 families",
    "日本語のテキスト 中文 한국어",
    "مرحبا بالعالم",
    "naïve café — “quotes”",
]
letters = st.text(alphabet="abc", max_size=12)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level tokenizer that knows few merges, so every exotic character is several tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    made.train_from_iterator(["plain words and more plain words"], trainer)
    return made


def guarded(pieces: list[str], stop_texts: list[str]) -> tuple[str, bool]:
    guard = StopGuard(stop_texts)
    text = "".join(guard.add(piece) for piece in pieces)
    stopped = guard.stop is not None
    return (text if stopped else text + guard.flush()), stopped


def expected(text: str, stop_texts: list[str]) -> tuple[str, bool]:
    """The text up to the stop that is complete first, letter by letter."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stop_texts if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(st.lists(letters, max_size=8), stops)
def test_a_stop_text_is_found_however_the_text_is_split(
    pieces: list[str], stop_texts: list[str]
) -> None:
    assert guarded(pieces, stop_texts) == expected("".join(pieces), stop_texts)


@given(st.lists(letters, max_size=8), stops)
def test_what_was_handed_out_is_always_a_beginning_of_the_final_text(
    pieces: list[str], stop_texts: list[str]
) -> None:
    final, _ = expected("".join(pieces), stop_texts)
    guard = StopGuard(stop_texts)
    sent = ""

    for piece in pieces:
        sent += guard.add(piece)

        assert final.startswith(sent)


def test_only_what_may_become_a_stop_text_is_held_back() -> None:
    guard = StopGuard(["\n\nUser:"])

    assert guard.add("Hello") == "Hello"
    assert guard.add(" there\n") == " there"
    assert guard.add("\nUse") == ""
    assert guard.add("ful") == "\n\nUseful"
    assert guard.stop is None


@pytest.mark.parametrize("sample", SAMPLES)
def test_characters_of_many_tokens_come_out_whole_and_once(
    tokenizer: Tokenizer, sample: str
) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode(sample).ids
    assert len(ids) > len(sample.encode()) // 4

    pieces = [detokenizer.add(token) for token in ids]

    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.flush() == sample


@given(st.text(max_size=30))
def test_any_text_survives_tokens_and_back(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)

    pieces = [detokenizer.add(token) for token in tokenizer.encode(text).ids]

    assert "".join(pieces) + detokenizer.flush() == text.rstrip(REPLACEMENT)


def test_an_answer_cut_inside_a_character_ends_before_it(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode("abc🦊").ids

    text = "".join(detokenizer.add(token) for token in ids[:-1]) + detokenizer.flush()

    assert text == "abc"


def test_a_stop_text_inside_the_last_flush_is_found(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ["c🦊"])
    text = "".join(answer.add(token)[0] for token in tokenizer.encode("abc🦊d").ids)

    assert text + answer.finish()[0] == "ab"
    assert answer.stop == "c🦊"


def test_special_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, [])
    end = tokenizer.encode("<end>").ids

    text = "".join(answer.add(token)[0] for token in [*tokenizer.encode("ab").ids, *end])

    assert text + answer.finish()[0] == "ab"


def test_a_mark_of_calls_that_is_a_special_token_is_known_all_the_same() -> None:
    made = tiny.tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    backend = made.backend_tokenizer
    answer = AnswerText(backend, [], "mistral")

    told = [answer.add(token) for token in backend.encode('a[TOOL_CALLS][{"name": "f"}]').ids]

    assert [piece for piece in told if piece != ("", [])] == [("a", [])]
    assert answer.finish() == ("", [Call("f", "{}")])
    assert answer.called
