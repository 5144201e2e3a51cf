"""From a model's name to a model that can answer: in the host, and only there.

Weights come from a converted GGUF, a directory or the hub. Whatever goes wrong is one sentence that
says which model and what to do.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import Module
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from orchestrator.errors import describe
from orchestrator.runners.torch import conversion
from orchestrator.runners.torch.calls import family_of
from orchestrator.runners.torch.locate import GgufFile, HubModel, ModelDirectory, locate
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.wire import Ready

DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16}

Tell = Callable[[str], None]


class LoadError(Exception):
    """The model can't be loaded; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory and what its engine needs to know."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    backend: Tokenizer
    """The tokenizer's fast core, which decodes."""
    end_tokens: frozenset[int]
    facts: Ready


def load(settings: TorchSettings, tell: Tell, *, warn: Tell | None = None) -> LoadedModel:
    """Loads, and tells each stage as it begins.

    Args:
        settings: What to load.
        tell: Gets a line for each stage.
        warn: Gets what goes wrong without hindering the load; by default `tell` gets it.

    Raises:
        ConfigError: There is no such model.
        LoadError: It can't be fetched, the device can't be used, or the model can't chat.
    """
    disable_progress_bar()  # stages are told; a bar would leave a thread behind and fill the log
    source = locate(settings.model)
    device = device_of(settings.device)
    match source:
        case GgufFile(path):
            tokenizer, model = _from_gguf(path, settings, tell, warn or tell)
        case ModelDirectory(path):
            tokenizer, model = _read(str(path), settings, tell)
        case HubModel(name):
            tokenizer, model = _from_hub(name, settings, tell)
    return _finished(settings, tokenizer, model, device, tell)


def device_of(name: str) -> torch.device:
    """Returns the device of that name, which `auto` finds.

    Raises:
        LoadError: It can't be used.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).partition("\n")[0]
        raise LoadError(f"device {name!r} can't be used: {text}") from error
    return device


def _from_gguf(path: Path, settings: TorchSettings, tell: Tell, warn: Tell) -> conversion.Parts:
    place = conversion.place_of(path)
    if place.is_dir():
        try:
            return _read(str(place), settings, tell)
        except Exception as error:  # noqa: BLE001 - a damaged copy fails in any of three libraries
            tell(f"the converted copy of {path.name} is damaged ({describe(error)[:100]})")
            shutil.rmtree(place, ignore_errors=True)
    parts = conversion.read(path, tell)
    try:
        tell(f"converting {path.name} once: writing the copy to {place}")
        conversion.store(parts, place)
        return _read(str(place), settings, tell)
    except Exception as error:  # noqa: BLE001 - the model is there, whatever three libraries met
        warn(f"the converted copy can't be kept: every start will take as long ({describe(error)})")
        tokenizer, model = parts
        dtype = DTYPES[settings.dtype]
        if isinstance(dtype, torch.dtype):
            Module.to(model, dtype)  # in place
        return tokenizer, model


def _from_hub(name: str, settings: TorchSettings, tell: Tell) -> conversion.Parts:
    try:
        return _read(name, settings, tell)
    except OSError as error:
        text = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"model {name!r} is neither in the local cache nor could it be fetched from the hub "
            f"({text}); check its name and the network, fetch it once with "
            f"`hf download {name}`, or give a directory or a .gguf file"
        ) from error


def _read(name: str, settings: TorchSettings, tell: Tell) -> conversion.Parts:
    tell(f"loading the tokenizer of {settings.model}")
    tokenizer = AutoTokenizer.from_pretrained(
        name, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    )
    tell(f"reading the weights of {settings.model}")
    model = AutoModelForCausalLM.from_pretrained(
        name,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
        dtype=DTYPES[settings.dtype],
    )
    return tokenizer, model


def _finished(
    settings: TorchSettings,
    tokenizer: PreTrainedTokenizerFast,
    model: PreTrainedModel,
    device: torch.device,
    tell: Tell,
) -> LoadedModel:
    if not tokenizer.chat_template:
        raise LoadError(
            f"model {settings.model!r} has no chat template, so it can't answer messages; "
            "take an instruction-tuned model, or add a chat_template to its tokenizer"
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise LoadError(
            f"model {settings.model!r} has only a slow tokenizer; it needs a tokenizer.json"
        )
    if device.type != "cpu":
        tell(f"moving the weights to {device}")
    Module.to(model, device)  # the method of transformers does the same, untyped
    model.eval()
    tensors = [*model.parameters(), *model.buffers()]
    facts = Ready(
        context_length=_context_length(settings, model),
        vocabulary=len(tokenizer),
        longest_token=_longest_token(backend),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(device),
        parameters=sum(tensor.numel() for tensor in model.parameters()),
        memory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        tools=family_of(str(tokenizer.chat_template)),
    )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        backend=backend,
        end_tokens=_end_tokens(tokenizer, model),
        facts=facts,
    )


def _context_length(settings: TorchSettings, model: PreTrainedModel) -> int:
    # the tokenizer's own model_max_length is 1e30 where nobody set it
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int):
        raise LoadError(f"model {settings.model!r}: its config names no max_position_embeddings")
    if settings.context is None:
        return length
    if settings.context > length:
        raise LoadError(
            f"model {settings.model!r} can't take a context of {settings.context} tokens: it was "
            f"made for {length}"
        )
    return settings.context


def _end_tokens(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> frozenset[int]:
    """Every id that any of the three places calls an end: chat models keep theirs apart."""
    found: set[int] = set()
    for holder in (model.generation_config, model.config.get_text_config(), tokenizer):
        ids: object = getattr(holder, "eos_token_id", None)
        for one in ids if isinstance(ids, list | tuple) else (ids,):
            if isinstance(one, int):
                found.add(one)
    return frozenset(found)


def _longest_token(backend: Tokenizer) -> int:
    # in a byte-level vocabulary one character stands for one byte, elsewhere for up to four
    return max(len(token.encode()) for token in backend.get_vocab(with_added_tokens=True))
