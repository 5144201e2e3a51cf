"""What is sent to an OpenAI-compatible provider: address, headers and body.

A caller's fields go through untouched.
"""

from dataclasses import dataclass
from typing import cast

import httpx

from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.remote.provider import ProviderSettings, checked_url


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings(ProviderSettings):
    """A server that speaks Chat Completions.

    Its `base_url` may end in a slash or in `/chat/completions`; a query (Azure's) is kept.
    """

    organization: str | None = None
    project: str | None = None
    provider: str = "openai"


def endpoint(base_url: str) -> httpx.URL:
    """Returns where to send requests.

    Raises:
        ConfigError: That is no address of an HTTP server.
    """
    url = checked_url(base_url)
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    return url.copy_with(path=path + "/chat/completions")


def payload(settings: OpenAISettings, request: PriorityRequest) -> dict[str, object]:
    """Returns the body to send; what the caller didn't set is left to the provider."""
    sampling = request.sampling
    chosen: dict[str, object] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    body: dict[str, object] = {"messages": [_message(message) for message in request.messages]}
    body.update((name, value) for name, value in chosen.items() if value is not None)
    body.update(settings.extra_body)
    body.update(request.extra)
    options = body.get("stream_options")
    body["stream_options"] = {
        **(cast("dict[str, object]", options) if isinstance(options, dict) else {}),
        "include_usage": True,
    }
    body["model"] = settings.model
    body["stream"] = True
    return body


def headers_of(settings: OpenAISettings, secret: str | None) -> dict[str, str]:
    """Returns the headers that such a server wants."""
    headers: dict[str, str] = {}
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    if settings.organization is not None:
        headers["openai-organization"] = settings.organization
    if settings.project is not None:
        headers["openai-project"] = settings.project
    return headers


def _message(message: Message) -> dict[str, object]:
    return {"role": message.role, "content": message.content, **message.fields}
