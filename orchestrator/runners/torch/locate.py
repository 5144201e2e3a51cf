"""Where a model's name leads: a GGUF file, a directory or the hub. Opens and imports nothing."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.errors import ConfigError

PACKAGE_PREFIX = "package:"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
PATH_STARTS = (".", "/", "~")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file with weights and tokenizer, to be converted once."""

    path: Path


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A directory as transformers writes it."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the hub, or its copy in the hub's own cache."""

    name: str


Source = GgufFile | ModelDirectory | HubModel


def locate(model: str) -> Source:
    """Returns what the name stands for.

    Raises:
        ConfigError: The package, file or directory isn't there, or the name is none of these.
    """
    if model.startswith(PACKAGE_PREFIX):
        return _in_package(model)
    path = Path(model).expanduser()
    if model.endswith(".gguf"):
        if not path.is_file():
            raise ConfigError(f"model {model!r}: there is no such file", param="model")
        return GgufFile(path.resolve())
    if model and path.is_dir():
        return _directory(model, path.resolve())
    if model.startswith(PATH_STARTS):
        raise ConfigError(f"model {model!r}: there is no such directory", param="model")
    if HUB_ID.fullmatch(model) is None:
        raise ConfigError(
            f"model {model!r} is neither 'package:<name>/<file.gguf>', a .gguf file, "
            "a directory nor a hub id like 'owner/name'",
            param="model",
        )
    return HubModel(model)


def _in_package(model: str) -> Source:
    package, _, place = model.removeprefix(PACKAGE_PREFIX).partition("/")
    inside = PurePosixPath(place)
    if not package.isidentifier() or not place or inside.is_absolute() or ".." in inside.parts:
        raise ConfigError(
            f"model {model!r} must have the form 'package:<name>/<file.gguf>' or "
            "'package:<name>/<folder>', inside the package",
            param="model",
        )
    # found without importing it: the package's own dependencies needn't be installed
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        raise ConfigError(
            f"model {model!r}: the package {package!r} isn't installed", param="model"
        )
    for folder in folders:
        path = Path(folder) / place
        if path.is_file() and place.endswith(".gguf"):
            return GgufFile(path.resolve())
        if path.is_dir():
            return _directory(model, path.resolve())
    what = "file" if place.endswith(".gguf") else "folder"
    raise ConfigError(f"model {model!r}: {package!r} has no {what} {place!r}", param="model")


def _directory(model: str, path: Path) -> Source:
    if (path / "config.json").is_file():
        return ModelDirectory(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return GgufFile(files[0])
    found = f"{len(files)} .gguf files" if files else "no .gguf file"
    raise ConfigError(
        f"model {model!r}: the directory has no config.json and {found}; "
        "it needs a config.json or exactly one .gguf",
        param="model",
    )
