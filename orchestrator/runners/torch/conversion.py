"""A GGUF file as a directory that loads in a moment, converted once and kept in the cache.

Reading a GGUF takes tens of seconds each time, its converted copy under one. A copy is written
beside its place and renamed into it, so whatever stands in the cache is whole; one that turns out
to be damaged is thrown away and made anew.
"""

import contextlib
import errno
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

BLOCK_BYTES = 1 << 20
BLOCKS = 128
"""Read to tell a file from others; a tenth of a second for 128 MiB."""
SPARE_BYTES = 64 << 20
"""Left free on a disk besides the copy: for its tokenizer and for what else writes there."""
UNFINISHED = ".converting-"


def cache_root() -> Path:
    """The platform's cache directory for converted models; may not exist yet."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "orchestrator" / "models"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "orchestrator" / "models"
    return Path.home() / ".cache" / "orchestrator" / "models"


def place_of(gguf: Path) -> Path:
    """Where the converted copy of this file stands; another file of the same name has another.

    Not told by the file's age: each new clone or installation would leave another copy.
    """
    size = gguf.stat().st_size
    identity = hashlib.blake2b(f"{FORMAT} {gguf.name} {size}".encode(), digest_size=8)
    # a small file is read whole; of a large one blocks all over it, for two trainings of the same
    # model are of one size and begin with the same names
    step = max(BLOCK_BYTES, size // BLOCKS)
    with gguf.open("rb") as file:
        for start in (*range(0, size, step), max(0, size - BLOCK_BYTES)):
            file.seek(start)
            identity.update(file.read(BLOCK_BYTES))
    return cache_root() / f"{gguf.stem}-{identity.hexdigest()}"


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
        OSError: The cache can't be written, or has no room for it.
        safetensors.SafetensorError: The same, met while the weights were written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(place)
    _, model = parts
    needed = SPARE_BYTES + sum(one.numel() * one.element_size() for one in model.parameters())
    free = shutil.disk_usage(place.parent).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{needed >> 20} MiB are needed and {free >> 20} MiB are free",
            str(place.parent),
        )
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
