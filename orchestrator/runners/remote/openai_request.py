"""What is sent to an OpenAI-compatible provider: address, headers and body.

A caller's fields go through untouched. Providers that call a field by another name, or refuse one,
are met halfway by their settings; what one of them can't do is refused here by name, or left out
where the deployment says `drop_params`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import httpx

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest, Work
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import RemoteSettings, address
from orchestrator.runners.remote.translation import object_in

PATH = "/chat/completions"
USAGE: Mapping[str, object] = {"include_usage": True}

# OpenAI's reasoning models refuse max_tokens; their names may have a vendor or "ft:" before them.
REASONING_MODEL = re.compile(r"(?:^|[/:])(?:o[134](?:-|$)|gpt-5)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings(RemoteSettings):
    """An endpoint that speaks Chat Completions, and what is peculiar to it."""

    organization: str | None = None
    project: str | None = None
    azure: bool = False
    """The key goes into Azure's own header, and the model's name is that of a deployment there."""
    api_version: str | None = None
    """Azure's dated API, with the deployment in the path; None speaks its v1 API."""
    max_tokens_field: Literal["auto", "max_tokens", "max_completion_tokens"] = "auto"
    """What the limit of an answer is called; auto goes by the model's name."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """The provider's own names of fields."""
    unsupported: tuple[str, ...] = ()
    """Fields that the provider refuses or ignores."""
    left_out: tuple[str, ...] = ()
    """Fields that the provider refuses and that have no bearing on the answer."""
    serves: tuple[Work, ...] = (Work.CHAT,)
    """What the model can do."""
    stream_options: bool = True
    """False where the provider refuses them; it tells the usage without being asked."""


def endpoint(settings: OpenAISettings, path: str = PATH) -> httpx.URL:
    """Returns where to send requests.

    Args:
        settings: Of the deployment.
        path: Below the API's address.

    Raises:
        ConfigError: `base_url` is no address of an HTTP server.
    """
    if not settings.azure:
        return address(settings.base_url, path)
    url = address(settings.base_url, "/openai")
    if settings.api_version is None:
        return url.copy_with(path=f"{url.path}/v1{path}")
    place = f"{url.path}/deployments/{settings.model}{path}"
    return url.copy_with(path=place).copy_merge_params({"api-version": settings.api_version})


def check(settings: OpenAISettings, request: PriorityRequest) -> None:
    """Looks for what the provider can't do.

    Raises:
        InvalidRequestError: A field has no place there; `param` names it.
    """
    if settings.drop_params:
        return
    if "n" in request.extra and request.extra["n"] not in (None, request.sampling.n):
        raise InvalidRequestError("n is a sampling parameter, not an extra field", param="n")
    if settings.unsupported:
        asked = {**_chosen(settings, request), **request.extra}
        for name in settings.unsupported:
            if asked.get(name) is not None:
                raise InvalidRequestError(f"{settings.provider} has no {name}", param=name)


def answers_to(settings: OpenAISettings, request: PriorityRequest) -> int:
    """How many answers are asked for: one where the provider has no `n`, if that is left out."""
    return 1 if "n" in settings.unsupported else request.sampling.n


def payload(settings: OpenAISettings, request: PriorityRequest) -> Steps[dict[str, object]]:
    """Returns the body to send; what the caller didn't set is left to the provider.

    Raises:
        InvalidRequestError: The provider has no place for a field.
    """
    check(settings, request)
    messages: list[dict[str, object]] = []
    for message in request.messages:
        messages.append(_message(message))
        yield
    body: dict[str, object] = {
        "messages": messages,
        **settings.extra_body,
        **_chosen(settings, request),
        **request.extra,
    }
    if request.sampling.n == 1:
        body.pop("n", None)
    for name in (*settings.unsupported, *settings.left_out):
        body.pop(name, None)
    for name, theirs in settings.renamed.items():
        if name in body:
            body[theirs] = body.pop(name)
    options = body.pop("stream_options") if "stream_options" in body else None
    if settings.stream_options:
        body["stream_options"] = {**object_in(options), "include_usage": True} if options else USAGE
    body["model"] = settings.model
    body["stream"] = True
    return body


def own_headers(settings: OpenAISettings, secret: str | None) -> dict[str, str]:
    """Returns the headers by which OpenAI knows its customer."""
    headers: dict[str, str] = {}
    if secret is not None:
        if settings.azure and not settings.bearer:
            headers["api-key"] = secret
        else:
            headers["authorization"] = f"Bearer {secret}"
    if settings.organization is not None:
        headers["openai-organization"] = settings.organization
    if settings.project is not None:
        headers["openai-project"] = settings.project
    return headers


def _chosen(settings: OpenAISettings, request: PriorityRequest) -> dict[str, object]:
    sampling = request.sampling
    longest = settings.max_tokens_field
    if longest == "auto":
        reasoning = REASONING_MODEL.search(settings.model)
        longest = "max_completion_tokens" if reasoning else "max_tokens"
    chosen: dict[str, object] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        longest: sampling.max_tokens,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "n": sampling.n if sampling.n > 1 else None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _message(message: Message) -> dict[str, object]:
    return {"role": message.role, "content": message.content, **message.fields}
