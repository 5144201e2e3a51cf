"""Answers of a random model that are kept to a form, with its own tokens."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.request import SamplingParams
from orchestrator.runners.torch import grammar as grammars
from orchestrator.runners.torch.forms import ANY_OBJECT, Form
from orchestrator.runners.torch.grammar import FormError, Grammar, Grammars
from orchestrator.runners.torch.sampling import Sampler
from tests.runners.torch import tiny

WORDS = tiny.tokenizer()
BACKEND = WORDS.backend_tokenizer
SIZE = len(WORDS)
END = 0
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 200},
            "kind": {"enum": ["fox", "crow", "🦊"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": False,
    }
)
KNOWN = Grammars(BACKEND, SIZE, {END})


def written(grammar: Grammar, seed: int, *, temperature: float, most: int = 200) -> list[int]:
    """What a model says that knows nothing and is kept to a form."""
    chance = np.random.default_rng(seed)
    sampler = Sampler(SamplingParams(temperature=temperature, top_p=0.9), seed, grammar=grammar)
    tokens: list[int] = []
    while len(tokens) < most and END not in tokens:
        tokens.append(sampler.choose(chance.normal(size=SIZE).astype(np.float32) * 3))
    return tokens


def text_of(tokens: list[int]) -> str:
    return BACKEND.decode(tokens, skip_special_tokens=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 1.0]))
def test_whatever_a_model_says_matches_the_schema_it_was_given(
    seed: int, temperature: float
) -> None:
    tokens = written(KNOWN.begin(Form("schema", PERSON)), seed, temperature=temperature)

    assert tokens[-1] == END
    found = json.loads(text_of(tokens))
    assert list(found) == ["name", "age", "kind"]
    assert len(found["name"]) <= 12
    assert 0 <= found["age"] <= 200
    assert found["kind"] in {"fox", "crow", "🦊"}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_regex_holds_from_the_first_character_to_the_last(seed: int) -> None:
    regex = r"(yes|no), \d{2}"

    tokens = written(KNOWN.begin(Form("regex", regex)), seed, temperature=1.0)

    assert re.fullmatch(regex, text_of(tokens))
    assert tokens[-1] == END


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_a_grammar_that_is_given_the_tokens_again_allows_the_same(
    seed: int, data: st.DataObject
) -> None:
    form = Form("schema", ANY_OBJECT)
    tokens = written(KNOWN.begin(form), seed, temperature=1.0, most=30)
    after = data.draw(st.integers(0, len(tokens)))
    row = np.zeros(SIZE, np.float32)
    undisturbed = KNOWN.begin(form)
    for token in tokens[:after]:
        undisturbed.masked(row)
        undisturbed.take(token)

    again = Grammars(BACKEND, SIZE, {END}).begin(form)
    for token in tokens[:after]:
        again.take(token)

    assert (again.masked(row) == undisturbed.masked(row)).all()


def test_spaces_between_two_words_of_json_come_to_an_end() -> None:
    grammar = KNOWN.begin(Form("schema", ANY_OBJECT))
    row = np.zeros(SIZE, np.float32)
    (space,) = BACKEND.encode(" ").ids

    allowed = 0
    for token in BACKEND.encode("{\n").ids:
        grammar.take(token)
    while grammar.masked(row)[space] == 0.0:
        grammar.take(space)
        allowed += 1

    assert allowed == 32


def test_scores_of_tokens_that_stand_for_nothing_are_out_of_the_question() -> None:
    grammar = KNOWN.begin(Form("regex", "a*"))

    row = grammar.masked(np.zeros(SIZE + 8, np.float32))

    assert len(row) == SIZE + 8
    assert np.isneginf(row[SIZE:]).all()
    assert row[END] == 0.0


def test_a_token_that_may_not_follow_is_told_of_and_ends_no_answer() -> None:
    grammar = KNOWN.begin(Form("regex", "a"))

    grammar.take(BACKEND.encode("b").ids[0])

    with pytest.raises(FormError, match="form failed"):
        grammar.masked(np.zeros(SIZE, np.float32))


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Form("schema", '{"type":"nope"}'), "nope"),
        (Form("schema", '{"not":{"type":"string"}}'), "not"),
        (Form("schema", '{"not":{}, "x-guidance":{"lenient":true}}'), "not"),
        (Form("schema", '{"$ref":"http://127.0.0.1:9/x"}'), "fetch"),
        (Form("schema", '{"type":"string","pattern":"("}'), "unclosed"),
        (Form("regex", "a(b"), "unclosed"),
        (Form("regex", "(?=a)b"), "look-around"),
    ],
)
def test_a_form_that_cannot_be_kept_to_says_why(form: Form, said: str) -> None:
    with pytest.raises(FormError, match=said):
        KNOWN.begin(form)


def test_a_form_is_read_once_and_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "KEPT", 2)
    known = Grammars(BACKEND, SIZE, {END})

    for text in "abcab":
        known.begin(Form("regex", text))

    assert [form.text for form in known.kept] == ["a", "b"]
