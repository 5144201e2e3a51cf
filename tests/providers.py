"""docs/providers.md's table: what each kind of provider can't do, as its runner tells it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from orchestrator.channel import Channel
from orchestrator.config import parse
from orchestrator.errors import InvalidRequestError
from orchestrator.plan import plan_deployments
from orchestrator.reading.presets import PRESETS
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.base import SlotFactory

TOOLS = [{"type": "function", "function": {"name": "f"}}]
FUNCTION = {"type": "function", "function": {"name": "f"}}
SAMPLING: Mapping[str, object] = {
    "frequency_penalty": 1.0,
    "n": 2,
    "presence_penalty": 1.0,
    "seed": 1,
    "stop": ("a",),
    "temperature": 1.5,
    "top_p": 0.5,
}
EXTRA: Mapping[str, Mapping[str, object]] = {
    "audio": {"audio": {"voice": "x"}},
    "functions": {"functions": [{"name": "f"}]},
    "logit_bias": {"logit_bias": {"1": 1}},
    "logprobs": {"logprobs": True},
    "modalities: audio": {"modalities": ["audio"]},
    "parallel_tool_calls: false": {"tools": TOOLS, "parallel_tool_calls": False},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "reasoning_effort": {"reasoning_effort": "low"},
    "response_format: json_object": {"response_format": {"type": "json_object"}},
    "response_format: json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"a": 1}}}
    },
    "service_tier: flex": {"service_tier": "flex"},
    "tool_choice: a function": {"tools": TOOLS, "tool_choice": FUNCTION},
    "tool_choice: required": {"tools": TOOLS, "tool_choice": "required"},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "verbosity": {"verbosity": "low"},
    "web_search_options": {"web_search_options": {"a": 1}},
}
"""Fields that change the answer, by the name under which the table has them."""


def slots(kind: str, *, drop: bool) -> SlotFactory:
    """A deployment of that kind, which nobody will ask."""
    preset = PRESETS[kind]
    address = "" if preset.base_url else ", base_url: 'http://x'"
    runner = f"{{kind: {kind}, model: m, drop_params: {str(drop).lower()}{address}}}"
    (plan,), _ = plan_deployments(parse(f"deployments: {{a: {{runner: {runner}}}}}", environ={}))
    return plan.factory


def refused(kind: str) -> Iterator[str]:
    """The fields that a kind can't do; each is left out with `drop_params`."""
    strict, lenient = slots(kind, drop=False), slots(kind, drop=True)
    for name, request in requests():
        with contextlib.suppress(InvalidRequestError):
            assert strict.inspect(request) is None
            continue
        assert lenient.inspect(request) is None, f"{kind} refuses {name} whatever is dropped"
        yield name


def requests() -> Iterator[tuple[str, PriorityRequest]]:
    """A request for each field, by the field's name."""
    plain = PriorityRequest(
        request_id="r",
        model="m",
        messages=[Message("user", "hi")],
        sampling=SamplingParams(),
        channel=Channel(),
    )
    for name, extra in EXTRA.items():
        yield name, replace(plain, extra=extra)
    for name, value in SAMPLING.items():
        yield name, replace(plain, sampling=replace(SamplingParams(), **{name: value}))


def provider_table() -> str:
    lines = [
        "| kind | address unless told otherwise | key from | by another name | can't do |",
        "|---|---|---|---|---|",
    ]
    for kind, preset in sorted(PRESETS.items()):
        renamed = ", ".join(f"`{ours}` as `{theirs}`" for ours, theirs in preset.renamed.items())
        cells = [
            f"`{kind}`",
            f"`{preset.base_url}`" if preset.base_url else "",
            f"`{preset.key_variable}`" if preset.key_variable else "",
            renamed,
            ", ".join(f"`{name}`" for name in sorted(refused(kind))),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
