"""What is sent to Gemini, at AI Studio or at Vertex, from a request in OpenAI's words.

* JSON Schemas of functions and answers go through untouched (`parametersJsonSchema`,
  `responseJsonSchema`). `reasoning_effort` becomes a level of thinking for Gemini 3 and later, a
  budget for those before. `generationConfig`, `safetySettings`, `cachedContent`, `thinkingConfig`
  and whatever else is the API's own goes through, and wins.
"""

import re
from dataclasses import dataclass
from typing import cast

import httpx

from orchestrator.errors import InvalidRequestError
from orchestrator.request import PriorityRequest, SamplingParams
from orchestrator.runners.remote.gemini_contents import conversation
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import RemoteSettings, address
from orchestrator.runners.remote.strays import Strays, unmarked
from orchestrator.runners.remote.translation import (
    Choice,
    Fields,
    Function,
    Object,
    choice_in,
    format_in,
    object_in,
    tools_in,
)

THINKS_IN_LEVELS = re.compile(r"gemini-(?:[3-9]|[1-9]\d)")
LEVELS = ("minimal", "low", "medium", "high", "xhigh")
BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Google's own translation of `reasoning_effort`, in tokens."""
MAX_STOPS = 5
MAX_SEED = 2**31 - 1
MAX_ANSWERS = 8
MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiSettings(RemoteSettings):
    """A deployment at AI Studio, or at Vertex if it has a project."""

    base_url: str = "https://generativelanguage.googleapis.com/v1beta"
    project: str | None = None
    """Google Cloud project; the key is sent as a bearer token then."""
    region: str = "global"
    """Region of that project."""
    provider: str = "gemini"


def endpoint(settings: GeminiSettings) -> httpx.URL:
    """Returns where to send requests.

    Raises:
        ConfigError: `base_url` is no address of an HTTP server.
    """
    place = settings.model
    if settings.project is not None:
        if "/" not in place:
            place = f"publishers/google/models/{place}"
        place = f"projects/{settings.project}/locations/{settings.region}/{place}"
    elif "/" not in place:  # else it is a tuned model, or "models/" stands before it already
        place = f"models/{place}"
    url = address(settings.base_url, f"/{place}:streamGenerateContent")
    return url.copy_merge_params({"alt": "sse"})


def own_headers(settings: GeminiSettings, secret: str | None) -> dict[str, str]:
    """Returns the headers that carry the key."""
    if secret is None:
        return {}
    if settings.bearer or settings.project is not None:
        return {"authorization": f"Bearer {secret}"}
    return {"x-goog-api-key": secret}


def payload(settings: GeminiSettings, request: PriorityRequest) -> Steps[dict[str, object]]:
    """Returns the body to send.

    Raises:
        InvalidRequestError: The API can't do it, or a message is of no use; `param` names it.
    """
    fields = Fields(settings, request)
    strays = Strays(settings, known=frozenset({"mime_type"}))
    strays.in_fields(fields.rest)
    system, turns = yield from conversation(request.messages, settings.provider, strays)
    if not turns:
        raise InvalidRequestError("messages must hold more than system messages", param="messages")
    contents: list[Object] = []
    for turn in turns:
        contents.append({"role": turn.role, "parts": turn.blocks})
        yield
    body: dict[str, object] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    body.update(_tools(fields))
    generation = {
        **_sampling(request.sampling, fields),
        **_format(fields),
        **_thinking(settings, fields),
        **_logprobs(fields),
        **_own_generation(fields),
    }
    if generation:
        body["generationConfig"] = generation
    fields.refuse_foreign()
    return {**fields.rest, **body}


def answers_to(sampling: SamplingParams) -> int:
    """How many answers are asked for."""
    return min(sampling.n, MAX_ANSWERS)


def _sampling(sampling: SamplingParams, fields: Fields) -> dict[str, object]:
    stops, seed = sampling.stop, sampling.seed
    if len(stops) > MAX_STOPS:
        fields.refuse("stop", f"takes at most {MAX_STOPS} stop texts")
        stops = stops[:MAX_STOPS]
    if seed is not None and seed > MAX_SEED:
        fields.refuse("seed", f"takes a seed up to {MAX_SEED}")
        seed = None
    if sampling.n > MAX_ANSWERS or fields.take("n") not in (None, 1):
        fields.refuse("n", f"gives at most {MAX_ANSWERS} answers to a request")
    chosen: dict[str, object] = {
        "candidateCount": answers_to(sampling) if sampling.n > 1 else None,
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "maxOutputTokens": sampling.max_tokens,
        "stopSequences": stops or None,
        "seed": seed,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _format(fields: Fields) -> dict[str, object]:
    wanted = format_in(fields)
    if wanted is None:
        return {}
    schema = {} if wanted.schema is None else {"responseJsonSchema": wanted.schema}
    return {"responseMimeType": "application/json", **schema}


def _thinking(settings: GeminiSettings, fields: Fields) -> dict[str, object]:
    effort = fields.take("reasoning_effort")
    own = object_in(fields.take("thinkingConfig") or fields.take("thinking_config"))
    if own or effort is None:
        return {"thinkingConfig": own} if own else {}
    in_levels = THINKS_IN_LEVELS.search(settings.model) is not None
    if in_levels and effort in LEVELS:
        return {"thinkingConfig": {"thinkingLevel": cast("str", effort).upper()}}
    if not in_levels and effort in BUDGETS:
        return {"thinkingConfig": {"thinkingBudget": BUDGETS[cast("str", effort)]}}
    efforts = ", ".join(LEVELS if in_levels else BUDGETS)
    fields.refuse("reasoning_effort", f"takes a reasoning_effort of {efforts}")
    return {}


def _logprobs(fields: Fields) -> dict[str, object]:
    wanted, most = fields.take("logprobs"), fields.take("top_logprobs")
    if not wanted:
        return {}
    return {"responseLogprobs": True} | ({"logprobs": most} if most else {})


def _own_generation(fields: Fields) -> dict[str, object]:
    own: dict[str, object] = {}
    for name in ("generation_config", "generationConfig"):
        own.update(object_in(fields.take(name)))
    top_k = fields.take("top_k")
    return own if top_k is None else {"topK": top_k, **own}


def _tools(fields: Fields) -> dict[str, object]:
    tools, choice = tools_in(fields), choice_in(fields)
    if fields.take("parallel_tool_calls") is False and tools:
        fields.refuse("parallel_tool_calls", "can't be kept from calling several tools at once")
    if not tools:
        return {}
    functions = [_declaration(tool) for tool in tools if isinstance(tool, Function)]
    given: list[Object] = [{"functionDeclarations": functions}] if functions else []
    given += [tool for tool in tools if not isinstance(tool, Function)]
    config = {} if choice is None else {"toolConfig": {"functionCallingConfig": _mode(choice)}}
    return {"tools": given, **config}


def _declaration(function: Function) -> Object:
    told: dict[str, object] = {**unmarked(function.fields), "name": function.name}
    if function.description is not None:
        told["description"] = function.description
    if function.parameters:
        told["parametersJsonSchema"] = function.parameters
    return told


def _mode(choice: Choice) -> Object:
    if not choice.names:
        return {"mode": MODES[choice.mode]}
    # in the mode AUTO the API takes no names
    mode = "ANY" if choice.mode == "required" else "VALIDATED"
    return {"mode": mode, "allowedFunctionNames": choice.names}
