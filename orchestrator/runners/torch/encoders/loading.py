"""From a model's name to a model that reads texts: in the host, and only there."""

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from torch.nn import Linear, Module
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from orchestrator.errors import describe
from orchestrator.runners.torch.encoders.batch import Batch, batch_of
from orchestrator.runners.torch.encoders.heads import classifying, pooled
from orchestrator.runners.torch.encoders.model import Encoder, Outputs
from orchestrator.runners.torch.encoders.packed import ForeignModelError, PackedBody
from orchestrator.runners.torch.encoders.padded import PaddedModel
from orchestrator.runners.torch.encoders.pending import Reading, Text
from orchestrator.runners.torch.encoders.recipe import Recipe, read_recipe
from orchestrator.runners.torch.loading import DTYPES, LoadError, Tell, device_of
from orchestrator.runners.torch.locate import GgufFile, HubModel, ModelDirectory, locate
from orchestrator.runners.torch.settings import EncoderSettings, TorchSettings
from orchestrator.runners.torch.wire import Encode, Ready

FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.py")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""How far two ways through the same model may lie apart, measured by the largest output."""
UNSET = 1_000_000
"""A tokenizer's length above this is the library's way of saying that nobody set it."""


def load(settings: TorchSettings, encoder: EncoderSettings, tell: Tell) -> Encoder:
    """Loads, and tells each stage as it begins.

    Args:
        settings: What to load.
        encoder: What it is for.
        tell: Gets a line for each stage.

    Raises:
        ConfigError: There is no such model.
        LoadError: It can't be fetched, the device can't be used, or it can't do what it is for.
    """
    disable_progress_bar()  # stages are told; a bar would leave a thread behind and fill the log
    folder = _folder(settings, tell)
    device = device_of(settings.device)
    recipe = read_recipe(folder, encoder)
    place = str(folder / recipe.transformer)
    tell(f"loading the tokenizer of {settings.model}")
    words = AutoTokenizer.from_pretrained(place, trust_remote_code=settings.trust_remote_code)
    tell(f"reading the weights of {settings.model}")
    kind = AutoModel if encoder.task == "embedding" else AutoModelForSequenceClassification
    model: PreTrainedModel = kind.from_pretrained(
        place, dtype=DTYPES[settings.dtype], trust_remote_code=settings.trust_remote_code
    )
    Module.to(model, device)
    model.eval()
    outputs, packs = _outputs(model, encoder, recipe, _padding_of(words))
    return _finished(settings, encoder, recipe, model, words, outputs, packs=packs)


def _folder(settings: TorchSettings, tell: Tell) -> Path:
    match locate(settings.model):
        case GgufFile(path):
            raise LoadError(f"{path.name}: a .gguf file can chat only; give a directory or hub id")
        case ModelDirectory(path):
            return path
        case HubModel(name):
            tell(f"looking for {name} on the hub")
            try:
                fetched = snapshot_download(
                    name, revision=settings.revision, allow_patterns=list(FILES)
                )
            except (OSError, ValueError) as error:
                raise LoadError(
                    f"model {name!r} is neither in the local cache nor could it be fetched from "
                    f"the hub ({describe(error)}); fetch it once with `orchestrator models pull`"
                ) from error
            return Path(fetched)


def _outputs(
    model: PreTrainedModel, encoder: EncoderSettings, recipe: Recipe, padding: int
) -> tuple[Outputs, bool]:
    """Returns the quickest way through the model that agrees with transformers' own."""
    padded = PaddedModel(model, padding)
    if encoder.task == "embedding":
        head = pooled(recipe.pooling, normalize=recipe.normalize)
        base = model

        def plain_outputs(batch: Batch) -> torch.Tensor:
            return head(padded.hidden(batch), batch)
    else:
        head = classifying(model)
        base = model.base_model

        def plain_outputs(batch: Batch) -> torch.Tensor:
            return padded.logits(batch).float()

    if head is None or not isinstance(base, PreTrainedModel):
        return plain_outputs, False
    try:
        body = PackedBody(base)
    except ForeignModelError:
        return plain_outputs, False
    known_head = head

    def packed_outputs(batch: Batch) -> torch.Tensor:
        return known_head(body(batch), batch)

    if not _agree(packed_outputs, plain_outputs, model):
        return plain_outputs, False
    for module in base.get_submodule("encoder").modules():
        if isinstance(module, Linear):  # packed now: both in memory would be the model twice
            module.to("meta")
    return packed_outputs, True


def _agree(one: Outputs, other: Outputs, model: PreTrainedModel) -> bool:
    """Whether two ways through a model lead to the same, for texts of several lengths."""
    chance = torch.Generator().manual_seed(1)
    vocabulary = int(model.config.vocab_size)
    reading = Reading(Encode(0, []))
    texts: list[Text] = []
    for length in (3, 5, 5, 8):
        # the lowest numbers are the special ones, padding among them
        tokens = torch.randint(vocabulary // 2, vocabulary, (length,), generator=chance).tolist()
        texts.append(Text(reading, 0, tokens, [0] * length))
    batch = batch_of(texts, model.device)
    with torch.inference_mode():
        first, second = one(batch), other(batch)
    if first.shape != second.shape:
        return False
    error = (first - second).abs().max() / second.abs().max()
    return bool(error <= TOLERANCE.get(model.dtype, 0.0))


def _finished(
    settings: TorchSettings,
    encoder: EncoderSettings,
    recipe: Recipe,
    model: PreTrainedModel,
    words: PreTrainedTokenizerBase,
    outputs: Outputs,
    *,
    packs: bool,
) -> Encoder:
    backend = getattr(words, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise LoadError(
            f"model {settings.model!r} has only a slow tokenizer; it needs a tokenizer.json"
        )
    length = _max_length(settings, encoder, recipe, model, words)
    # files come with both set, to whatever the model was once converted with
    backend.no_padding()
    backend.no_truncation()
    if encoder.truncate:
        backend.enable_truncation(length)
    labels = _labels(settings, encoder, model)
    size = int(model.config.hidden_size)
    tensors = [*model.parameters(), *model.buffers()]
    facts = Ready(
        context_length=length,
        vocabulary=len(words),
        longest_token=max(len(token.encode()) for token in backend.get_vocab()),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        parameters=sum(tensor.numel() for tensor in model.parameters()),
        memory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        dimensions=size if encoder.task == "embedding" else 0,
    )
    return Encoder(
        settings=encoder,
        tokenizer=backend,
        outputs=outputs,
        packs=packs,
        pairs="token_type_ids" in words.model_input_names,
        device=model.device,
        max_length=length,
        normalize=recipe.normalize,
        labels=labels,
        independent=getattr(model.config, "problem_type", None) == "multi_label_classification",
        facts=facts,
    )


def _labels(
    settings: TorchSettings, encoder: EncoderSettings, model: PreTrainedModel
) -> dict[int, str]:
    if encoder.task == "embedding":
        return {}
    labels = {int(number): str(name) for number, name in dict(model.config.id2label or {}).items()}
    if encoder.task == "rerank" and len(labels) != 1:
        raise LoadError(
            f"model {settings.model!r} has {len(labels)} outputs; one that ranks has a single one"
        )
    return labels


def _max_length(
    settings: TorchSettings,
    encoder: EncoderSettings,
    recipe: Recipe,
    model: PreTrainedModel,
    words: PreTrainedTokenizerBase,
) -> int:
    places = getattr(model.config, "max_position_embeddings", None)
    most = places if isinstance(places, int) else UNSET
    if "roberta" in str(model.config.model_type):  # its places begin behind the padding's
        most -= _padding_of(words) + 1
    if encoder.max_length is not None:
        if encoder.max_length > most:
            raise LoadError(
                f"max_length is {encoder.max_length}; model {settings.model!r} reads {most} tokens"
            )
        return encoder.max_length
    told = recipe.max_length or words.model_max_length
    return min(most, told if told <= UNSET else most)


def _padding_of(words: PreTrainedTokenizerBase) -> int:
    padding = words.pad_token_id
    return padding if isinstance(padding, int) else 0
