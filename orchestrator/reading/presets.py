"""Providers that are known by name: where they are, how they differ, and which models are theirs.

A kind that speaks OpenAI's chat completions is a line in `PRESETS` and nothing else. A deployment
that names only its model gets the kind with the longest prefix of that name in `PREFIXES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a kind stands for."""

    base_url: str | None = None
    """Where it is unless the deployment says so; None where nobody can know."""
    key_variable: str | None = None
    """The environment variable that its own tools take the key from. It is read only where the
    deployment has neither a key nor an address of its own, so no key goes astray."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Its own names of OpenAI's fields."""
    unsupported: tuple[str, ...] = ()
    """OpenAI's fields that it refuses."""
    left_out: tuple[str, ...] = ()
    """OpenAI's fields that it refuses and that have no bearing on the answer."""
    stream_options: bool = True
    """Whether it takes them; one that doesn't tells the usage unasked."""


PRESETS: Mapping[str, Preset] = {
    "openai": Preset(base_url="https://api.openai.com/v1", key_variable="OPENAI_API_KEY"),
    "openai-responses": Preset(base_url="https://api.openai.com/v1", key_variable="OPENAI_API_KEY"),
    "anthropic": Preset(base_url="https://api.anthropic.com/v1", key_variable="ANTHROPIC_API_KEY"),
    "gemini": Preset(
        base_url="https://generativelanguage.googleapis.com/v1beta", key_variable="GEMINI_API_KEY"
    ),
    "azure": Preset(),
    "deepseek": Preset(
        base_url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        unsupported=("n",),
    ),
    "groq": Preset(
        base_url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        unsupported=("logit_bias", "logprobs", "n", "top_logprobs"),
    ),
    "mistral": Preset(
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        renamed={"seed": "random_seed"},
        unsupported=("logit_bias",),
        left_out=(
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "store",
            "user",
        ),
        stream_options=False,
    ),
    "openrouter": Preset(
        base_url="https://openrouter.ai/api/v1", key_variable="OPENROUTER_API_KEY"
    ),
    "together": Preset(base_url="https://api.together.xyz/v1", key_variable="TOGETHER_API_KEY"),
    # servers that people run themselves, at the ports that they open unless told otherwise
    "litellm": Preset(base_url="http://127.0.0.1:4000/v1"),
    "llama-cpp": Preset(base_url="http://127.0.0.1:8080/v1"),
    "lm-studio": Preset(base_url="http://127.0.0.1:1234/v1", unsupported=("n",)),
    "ollama": Preset(base_url="http://127.0.0.1:11434"),
    "sglang": Preset(base_url="http://127.0.0.1:30000/v1"),
    "tgi": Preset(base_url="http://127.0.0.1:3000/v1", unsupported=("n",)),
    "vllm": Preset(base_url="http://127.0.0.1:8000/v1"),
}

PREFIXES: Mapping[str, str | None] = {
    "gpt-": "openai",
    "gpt-oss": None,  # open weights, served by everybody but OpenAI
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "ft:gpt-": "openai",
    "claude-": "anthropic",
    "gemini-": "gemini",
    "google/gemini-": "gemini",
    "deepseek-": "deepseek",
    "mistral-": "mistral",
    "ministral-": "mistral",
    "magistral-": "mistral",
    "codestral-": "mistral",
    "devstral-": "mistral",
    "package:": "torch",
    "./": "torch",
    "../": "torch",
    "~/": "torch",
    "/": "torch",
} | {f"{kind}/": kind for kind in PRESETS if kind != "azure"}
"""Kinds by the beginnings of model names. A kind's own name and a slash is no part of the name."""


def inferred(model: str) -> tuple[str, str] | None:
    """Returns the kind that a model's name stands for and the name there; None if nobody knows."""
    found = max((prefix for prefix in PREFIXES if model.startswith(prefix)), key=len, default=None)
    if found is None:
        return ("torch", model) if model.endswith(".gguf") else None
    kind = PREFIXES[found]
    own = found.removesuffix("/") in PRESETS
    name = model.removeprefix(found) if own else model.removeprefix("google/")
    return (kind, name) if kind and name else None
