"""Texts of many requests: what fails alone, what never runs, what needn't run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.runners.torch.encoders.batch import Batch, cut
from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.encoders.pending import Reading, Text
from orchestrator.runners.torch.wire import Completed, Encode, Refused
from tests.runners.torch.encoders import models
from tests.runners.torch.encoders.asking import Asked, answered


class Broken:
    """Stands before a model and spoils what a text with a certain word gets."""

    def __init__(self, encoder: Encoder, how: str) -> None:
        self.outputs = encoder.outputs
        self.how = how
        self.word = encoder.tokenizer.token_to_id("nothing")
        self.seen: list[int] = []

    def __call__(self, batch: Batch) -> torch.Tensor:
        self.seen.append(batch.count)
        rows = self.outputs(batch)
        if self.word not in batch.ids.tolist():
            return rows
        match self.how:
            case "raises":
                raise RuntimeError("on cue")
            case "few":
                return rows[:-1]
            case _:
                rows = rows.clone()
                rows[-1] = float("nan")  # the longest text stands last
                return rows


def broken(folder: Path, how: str, **more: Any) -> tuple[Encoder, Broken]:
    encoder = models.opened(models.write(folder), **more)
    breaking = Broken(encoder, how)
    return replace(encoder, outputs=breaking), breaking


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "input[1]: the model failed: RuntimeError: on cue"),
        ("few", "input[1]: the model failed: ResultCountError: result_count_mismatch: 0 results"),
        ("nan", "input[1]: the model's result is not finite"),
    ],
)
def test_a_bad_text_fails_its_request_alone(tmp_path: Path, how: str, message: str) -> None:
    encoder, _ = broken(tmp_path, how)
    asked = Asked(encoder)
    good = ["a few", "plain words", "some texts"]

    for stream, texts in enumerate([good, ["words", "a few of nothing"], good]):
        asked.ask(Encode(stream, texts))
    asked.run()

    refused = asked.ending(1)
    assert isinstance(refused, Refused)
    assert refused.message.startswith(message)
    assert isinstance(asked.ending(0), Completed)
    assert asked.vectors(2) == asked.vectors(0) == answered(encoder, good).vectors()


def test_what_comes_after_a_failure_is_read_as_ever(tmp_path: Path) -> None:
    encoder, _ = broken(tmp_path, "raises")
    asked = Asked(encoder)
    asked.ask(Encode(0, ["nothing"]))
    asked.run()

    asked.ask(Encode(1, ["a few"]))
    asked.run()

    assert isinstance(asked.ending(1), Completed)


def test_texts_of_a_request_that_was_left_never_run(tmp_path: Path) -> None:
    encoder, seen = broken(tmp_path, "counts", batch_tokens=8)
    asked = Asked(encoder)
    asked.ask(Encode(0, ["a few words"] * 500))
    asked.engine.step()
    before = sum(seen.seen)

    asked.pending.drop(0)
    asked.ask(Encode(1, ["plain"]))
    asked.run()

    assert before <= 32
    assert sum(seen.seen) == before + 1


def test_a_single_text_does_not_wait_for_thousands_of_another(tmp_path: Path) -> None:
    encoder, seen = broken(tmp_path, "counts", batch_tokens=50)
    asked = Asked(encoder)
    asked.ask(Encode(0, ["a few words"] * 2000))
    asked.ask(Encode(1, ["plain"]))

    asked.engine.step()

    assert isinstance(asked.ending(1), Completed)
    assert sum(seen.seen) < 60


def test_a_window_is_read_in_batches_by_length(tmp_path: Path) -> None:
    encoder, seen = broken(tmp_path, "counts", batch_tokens=12)
    asked = Asked(encoder)

    asked.ask(Encode(0, ["a", "a few plain words of some", "a", "a", "a"]))
    asked.run()

    assert seen.seen == [4, 1]


def test_a_text_that_comes_again_needs_no_pass(tmp_path: Path) -> None:
    encoder, seen = broken(tmp_path, "counts", cache=2**20)
    asked = Asked(encoder)
    asked.ask(Encode(0, ["a few", "plain words"]))
    asked.run()
    before = sum(seen.seen)

    asked.ask(Encode(1, ["plain words", "a few"], dimensions=4))
    asked.run()

    assert sum(seen.seen) == before == 2
    assert asked.vectors(1) == [row[:4] for row in reversed(asked.vectors(0))]


def test_without_a_cache_every_text_runs_anew(tmp_path: Path) -> None:
    encoder, seen = broken(tmp_path, "counts")
    asked = Asked(encoder)

    for stream in range(2):
        asked.ask(Encode(stream, ["a few"]))
        asked.run()

    assert sum(seen.seen) == 2


def test_two_pairs_with_the_same_letters_are_not_the_same(tmp_path: Path) -> None:
    encoder = models.opened(models.write(tmp_path, labels={0: "score"}), "rerank", cache=2**20)

    first = answered(encoder, ["words of"], query="plain", raw=True).results()
    second = answered(encoder, ["of"], query="plain words", raw=True).results()

    assert first != second


@pytest.mark.parametrize("padded", [False, True])
def test_no_batch_costs_more_tokens_than_it_may(padded: bool) -> None:
    reading = Reading(Encode(0, []))
    lengths = [7, 3, 9, 3, 30, 1, 7, 12]
    texts = [Text(reading, 0, [0] * length, [0] * length) for length in lengths]

    batches = cut(texts, 20, padded=padded)

    assert sorted(len(text.tokens) for batch in batches for text in batch) == sorted(lengths)
    for batch in batches:
        sizes = [len(text.tokens) for text in batch]
        assert len(batch) == 1 or (max(sizes) * len(sizes) if padded else sum(sizes)) <= 20
