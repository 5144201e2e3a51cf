"""What is sent to an OpenAI-compatible provider: address, headers and body.

A caller's fields go through untouched; what can't be sent is told here, before anything is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import httpx
import msgspec

from orchestrator.errors import (
    ConfigError,
    InvalidRequestError,
    UpstreamAuthenticationError,
    describe,
)
from orchestrator.request import Message, PriorityRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """Where a provider is and how it wants to be asked."""

    base_url: str
    """With or without a slash or `/chat/completions` at its end; a query (Azure's) is kept."""
    model: str
    """The provider's own name of the model."""
    api_key: Callable[[], str] | None = field(default=None, repr=False)
    """Asked for every request, so that a key may change; None sends none."""
    organization: str | None = None
    project: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent besides ours, and in place of ours of the same name."""
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    """Members of every request's body; a request's own win."""
    provider: str = "openai"
    """The name in errors."""
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the usual ones."""
    verify: bool = True
    """False trusts whoever answers."""


def endpoint(base_url: str) -> httpx.URL:
    """Returns where to send requests.

    Raises:
        ConfigError: That is no address of an HTTP server.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url {base_url!r} is no URL: {describe(error)}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url {base_url!r} must begin with http:// or https:// and a host")
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


def secret_of(settings: OpenAISettings) -> str | None:
    """Returns the key to send now; None if the provider wants none.

    Raises:
        UpstreamAuthenticationError: No header can carry it.
    """
    if settings.api_key is None:
        return None
    secret = settings.api_key().strip()  # a file with a key in it usually ends in a line feed
    if not fits_header(secret):
        raise UpstreamAuthenticationError(
            f"the api_key of {settings.provider} has characters that no header can carry"
        )
    return secret


def fits_header(text: str) -> bool:
    """Whether a header can carry the text: no line ends, no letters beyond ASCII."""
    return text.isascii() and text.isprintable()


def encode(body: Mapping[str, object]) -> bytes:
    """Returns the body's bytes.

    Raises:
        InvalidRequestError: A field that is passed on untouched is nothing that JSON can carry.
    """
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            f"the request holds something that JSON can't carry ({describe(error)})"
        ) from error


def headers_of(settings: OpenAISettings, secret: str | None) -> dict[str, str]:
    """Returns the headers to send; the deployment's own win."""
    headers = {
        "accept": "text/event-stream",
        "accept-encoding": "identity",  # a compressor would hold tokens back
        "content-type": "application/json",
        "user-agent": "orchestrator",
    }
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    if settings.organization is not None:
        headers["openai-organization"] = settings.organization
    if settings.project is not None:
        headers["openai-project"] = settings.project
    headers.update((name.lower(), value) for name, value in settings.headers.items())
    return headers


def _message(message: Message) -> dict[str, object]:
    return {"role": message.role, "content": message.content, **message.fields}
