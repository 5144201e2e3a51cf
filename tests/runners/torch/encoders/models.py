"""Real but tiny models that read texts: random weights, a tokenizer of whole words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import tqdm
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.utils.logging import disable_progress_bar

from orchestrator.runners.torch.encoders.loading import load
from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.settings import Dtype, EncoderSettings, Task, TorchSettings

FIRST_WORDS = ["a", "few", "plain", "words", "of", "some", "texts", "that", "are", "read", "and"]
WORDS = [*FIRST_WORDS, "nothing", "more", "than", "this"]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS) + len(SPECIAL),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.5,
}

torch.set_num_threads(1)  # several threads cost such a model more than they bring
disable_progress_bar()  # a bar would leave a thread behind
tqdm.tqdm.monitor_interval = 0  # so would those that transformers can't switch off


def tokenizer(*, pairs: bool = True) -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        model_input_names=["input_ids", *(["token_type_ids"] * pairs), "attention_mask"],
    )


def network(kind: str, labels: Mapping[int, str]) -> PreTrainedModel:
    torch.manual_seed(7)
    named: dict[str, Any] = {"id2label": dict(labels), "num_labels": len(labels)} if labels else {}
    match kind:
        case "bert":
            config = BertConfig(**SIZES, **named)
            return BertForSequenceClassification(config) if labels else BertModel(config)
        case "roberta":
            config = XLMRobertaConfig(**SIZES | {"type_vocab_size": 2}, **named)
            return XLMRobertaForSequenceClassification(config)
        case _:
            sizes: dict[str, Any] = {
                "vocab_size": SIZES["vocab_size"],
                "dim": 32,
                "n_layers": 2,
                "n_heads": 4,
            }
            return DistilBertModel(
                DistilBertConfig(**sizes, hidden_dim=48, max_position_embeddings=64)
            )


def write(
    folder: Path,
    kind: str = "bert",
    *,
    labels: Mapping[int, str] | None = None,
    pooling: str | None = None,
    normalize: bool = False,
) -> str:
    """Writes a model as sentence-transformers does; returns its place."""
    tokenizer(pairs=kind == "bert").save_pretrained(folder)
    network(kind, labels or {}).eval().save_pretrained(folder)
    if pooling is not None:
        steps = [("Transformer", ""), ("Pooling", "1_Pooling")]
        steps += [("Normalize", "2_Normalize")] if normalize else []
        made = [{"type": f"sentence_transformers.models.{name}", "path": at} for name, at in steps]
        (folder / "modules.json").write_text(json.dumps(made), encoding="utf-8")
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(
            json.dumps({f"pooling_mode_{pooling}": True, "pooling_mode_other": False}),
            encoding="utf-8",
        )
    return str(folder)


def opened(place: str, task: Task = "embedding", dtype: Dtype = "float32", **more: Any) -> Encoder:
    encoder = EncoderSettings(task=task, **more)
    settings = TorchSettings(model=place, dtype=dtype, device="cpu", encoder=encoder)
    return load(settings, encoder, lambda _: None)


def token_vectors(place: str, text: str) -> torch.Tensor:
    """What transformers itself says of one text: (length, hidden)."""
    words = AutoTokenizer.from_pretrained(place)
    model = AutoModel.from_pretrained(place).eval()
    words.backend_tokenizer.no_padding()
    words.backend_tokenizer.no_truncation()
    with torch.inference_mode():
        read = words(text, return_tensors="pt", truncation=True, max_length=256)
        return model(**read).last_hidden_state[0]


def logits(place: str, first: str, second: str | None = None) -> torch.Tensor:
    """What transformers itself says of one text or pair: (labels,)."""
    words = AutoTokenizer.from_pretrained(place)
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    with torch.inference_mode():
        return model(**words(first, second, return_tensors="pt")).logits[0]
