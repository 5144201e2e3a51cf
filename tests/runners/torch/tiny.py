"""A real but tiny model: two layers, random weights, a byte-level tokenizer. Loads in a moment."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
import tqdm
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.wire import Ready

CONTEXT = 400
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ raise_exception('no answers, please') }}{% endif %}"
    "{{ message.content }}<end>{% endfor %}"
)
HIDDEN, LAYERS, HEADS, KEY_HEADS, INNER = 32, 2, 4, 2, 48


torch.set_num_threads(1)  # several threads cost such a model more than they bring
disable_progress_bar()  # a bar would leave a thread behind
tqdm.tqdm.monitor_interval = 0  # so would those that transformers can't switch off


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    made.train_from_iterator(["some plain words and more plain words"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", bos_token="<end>", chat_template=TEMPLATE
    )


def model(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(7)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=CONTEXT,
            bos_token_id=0,
            eos_token_id=0,
            initializer_range=1.0,
        )
    )
    made.set_attn_implementation("sdpa")
    return made.eval()


def loaded() -> LoadedModel:
    words = tokenizer()
    net = model(len(words))
    facts = Ready(
        context_length=CONTEXT,
        vocabulary=len(words),
        longest_token=10,
        dtype="float32",
        device="cpu",
        parameters=1,
        memory_bytes=4,
    )
    return LoadedModel(
        model=net,
        tokenizer=words,
        backend=words.backend_tokenizer,
        end_tokens=frozenset({0}),
        facts=facts,
    )


def write_directory(folder: Path) -> None:
    words = tokenizer()
    words.save_pretrained(folder)
    model(len(words)).save_pretrained(folder)


def write_gguf(path: Path) -> None:
    words = tokenizer().backend_tokenizer
    vocabulary = words.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    merges = [" ".join(pair) for pair in _merges(words)]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    chance = np.random.default_rng(7)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, chance.standard_normal(shape, dtype=np.float32))

    width = HIDDEN // HEADS
    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    add("output.weight", len(tokens), HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm.weight", HIDDEN)
        add(f"{block}.ffn_norm.weight", HIDDEN)
        add(f"{block}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"{block}.attn_k.weight", KEY_HEADS * width, HIDDEN)
        add(f"{block}.attn_v.weight", KEY_HEADS * width, HIDDEN)
        add(f"{block}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"{block}.ffn_gate.weight", INNER, HIDDEN)
        add(f"{block}.ffn_up.weight", INNER, HIDDEN)
        add(f"{block}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merges(words: Tokenizer) -> list[list[str]]:

    return json.loads(words.to_str())["model"]["merges"]
