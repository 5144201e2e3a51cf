"""A GGUF file as a directory that loads in a moment, converted once and kept in the cache.

Reading a GGUF takes tens of seconds each time, its converted copy under one. A copy is written
beside its place and renamed into it, so whatever stands in the cache is whole; one that turns out
to be damaged is thrown away and made anew.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.quantization_config import GgufConfig

FORMAT = 1
"""Raised whenever the same file would be converted to something else."""
Parts = tuple[PreTrainedTokenizerFast, PreTrainedModel]

UNFINISHED = ".converting-"


def cache_root() -> Path:
    """The platform's cache directory for converted models; may not exist yet."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "orchestrator" / "models"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "orchestrator" / "models"
    return Path.home() / ".cache" / "orchestrator" / "models"


def place_of(gguf: Path) -> Path:
    """Where the converted copy of this file stands; another file of the same name has another."""
    stat = gguf.stat()
    identity = f"{FORMAT} {gguf.name} {stat.st_size} {stat.st_mtime_ns}"
    return cache_root() / f"{gguf.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def read(gguf: Path, tell: Callable[[str], None]) -> Parts:
    """Returns tokenizer and model of the file, its weights in float32; takes long.

    Raises:
        ValueError: The file is no GGUF that transformers can read.
    """
    tell(f"converting {gguf.name} once: its tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tell(f"converting {gguf.name} once: its weights")
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        # without it transformers keeps the file's quantisation and refuses to save
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    return tokenizer, model


def store(parts: Parts, place: Path) -> None:
    """Writes tokenizer and model to `place`, whole or not at all.

    Raises:
        OSError: The cache can't be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(place)
    folder = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{os.getpid()}-", dir=place.parent))
    try:
        for part in parts:
            part.save_pretrained(folder)
        # another process may have been faster; its copy is as good as this one
        with contextlib.suppress(FileExistsError):
            _rename(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, place: Path) -> None:
    try:
        folder.rename(place)
    except OSError as error:
        if place.is_dir():
            raise FileExistsError(place) from error
        raise


def _remove_unfinished(place: Path) -> None:
    """Removes what conversions that were killed left behind."""
    for folder in place.parent.glob(f"{UNFINISHED}*"):
        pid = folder.name.removeprefix(UNFINISHED).partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
