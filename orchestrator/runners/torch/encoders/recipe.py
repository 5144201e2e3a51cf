"""How a model's token vectors become one vector, as sentence-transformers writes it into its files.

`modules.json` names the steps, each with a folder of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from orchestrator.runners.torch.loading import LoadError
from orchestrator.runners.torch.settings import EncoderSettings, Pooling

POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
NAMED: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done after the model."""

    pooling: Pooling
    normalize: bool
    max_length: int | None
    """Tokens of a text, if the files say so."""
    transformer: str
    """Folder of the model itself, below the one that was given; empty if it is that one."""


def read_recipe(folder: Path, settings: EncoderSettings) -> Recipe:
    """Reads the files beside a model; settings go before them.

    A model without any is pooled by the mean and isn't normalized, as sentence-transformers does.

    Raises:
        LoadError: A step isn't known here, or a file is damaged.
    """
    pooling: Pooling = "mean"
    normalize = False
    transformer = ""
    for step in _steps(folder):
        kind = str(step.get("type", "")).rpartition(".")[2]
        place = str(step.get("path", ""))
        match kind:
            case "Transformer":
                transformer = place
            case "Pooling":
                pooling = settings.pooling or _pooling(folder / place / "config.json")
            case "Normalize":
                normalize = True
            case _:
                raise LoadError(f"modules.json has a step {kind!r}, which isn't known here")
    return Recipe(
        pooling=settings.pooling or pooling,
        normalize=normalize if settings.normalize is None else settings.normalize,
        max_length=_max_length(folder / transformer),
        transformer=transformer,
    )


def _steps(folder: Path) -> list[Mapping[str, object]]:
    path = folder / "modules.json"
    if not path.is_file():
        return []
    steps = _read(path)
    if not isinstance(steps, list) or not all(
        isinstance(step, dict) for step in cast("list[object]", steps)
    ):
        raise LoadError(f"{path.name} is no list of steps")
    return cast("list[Mapping[str, object]]", steps)


def _pooling(path: Path) -> Pooling:
    config = _object(path)
    named = config.get("pooling_mode")  # newer files name it
    if isinstance(named, str) and named in NAMED:
        return NAMED[named]
    modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise LoadError(
            f"the model pools by {', '.join(modes) or 'nothing'}; set pooling to mean, cls, last "
            "or max if one of these is meant"
        )
    return POOLINGS[modes[0]]


def _max_length(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    length = _object(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None


def _object(path: Path) -> Mapping[str, object]:
    found = _read(path)
    if not isinstance(found, dict):
        raise LoadError(f"{path.name} holds no object")
    return cast("Mapping[str, object]", found)


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path.name} can't be read: {error}") from error
