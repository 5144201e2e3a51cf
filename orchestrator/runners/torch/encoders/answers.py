"""What a model's numbers are for whoever asked: JSON of one text's result."""

import base64
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.wire import Encode

_encoder = msgspec.json.Encoder()

Row = NDArray[np.float32]
"""(outputs,)"""


def answer(encoder: Encoder, asked: Encode, place: int, row: Row) -> bytes:
    """Returns the JSON for one text.

    Args:
        encoder: Whose numbers they are.
        asked: How they are wanted.
        place: Which of the texts.
        row: The numbers, all finite.
    """
    match encoder.settings.task:
        case "embedding":
            return _encoder.encode(
                {
                    "object": "embedding",
                    "index": place,
                    "embedding": _vector(encoder, asked, row),
                }
            )
        case "rerank":
            score = float(row[0])
            return _encoder.encode(score if asked.raw else _sigmoid(score))
        case "classify":
            return _encoder.encode(_classes(encoder, row, raw=asked.raw))


def _vector(encoder: Encoder, asked: Encode, row: Row) -> str | list[float]:
    if asked.dimensions is not None and asked.dimensions < len(row):
        row = row[: asked.dimensions]
        length = float(np.linalg.norm(row))
        if encoder.normalize and length > 0:
            row = row / np.float32(length)
    if asked.base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()


def _classes(encoder: Encoder, row: Row, *, raw: bool) -> list[dict[str, object]]:
    scores: list[float] = row.tolist()
    if not raw:
        alone = encoder.independent or len(scores) == 1
        scores = [_sigmoid(score) for score in scores] if alone else _softmax(scores)
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return [
        {"label": encoder.labels.get(number, str(number)), "score": scores[number]}
        for number in order
    ]


def _sigmoid(value: float) -> float:
    # of two forms the one whose exponent can't overflow
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))


def _softmax(values: list[float]) -> list[float]:
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    total = math.fsum(powers)
    return [power / total for power in powers]
