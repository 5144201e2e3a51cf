"""The sections of models that are asked over HTTP, one a wire format.

What all of them have in common stands in `Remote`; a kind that is known by name brings its address
along (`presets.py`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from orchestrator.reading.credentials import ApiKey, Fetched, KeyWithLimits, OneOfSeveral
from orchestrator.reading.presets import PRESETS
from orchestrator.reading.quantities import text, whole, wrong
from orchestrator.reading.references import Secret, Surroundings, base_url, existing_file
from orchestrator.reading.sections import NonEmpty, Section
from orchestrator.reading.text import section_of

_OWN_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "connection"}

_PROXY = re.compile(
    r"http://([^/@:]+(:[^/@]*)?@)?([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?/?"
)

Address = Annotated[str, base_url()]
WorkName = Literal["chat", "embed", "rerank", "classify"]
HeaderName = Annotated[str, text(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "a header's name")]


def _canonical(kind: str) -> str:
    return "openai" if kind == "open_ai" else kind


def _proxy(proxy: Secret) -> Secret:
    # not told: it may hold a password
    if proxy.reveal() != "env" and not _PROXY.fullmatch(proxy.reveal()):
        raise wrong("not a proxy's address; http://user:password@host:port or env is allowed")
    return proxy


def _not_own(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    for name in headers:
        if name.lower() in _OWN_HEADERS:
            raise wrong(f"header {name} is the runner's own to set")
    return headers


class Remote(Section):
    """What the runners of all providers have in common."""

    base_url: Address = ""
    """Address before the API's own path; a kind that is known by name has one already."""
    model: NonEmpty
    """The model's name at the provider."""
    api_key: ApiKey | None = None
    """{env: NAME}, {file: PATH}, {command: [...]}, {oauth2: ...} or {google: ...}; without base_url
    also the kind's own variable (OPENAI_API_KEY)."""
    api_keys: (
        Annotated[tuple[OneOfSeveral, ...], Field(strict=False, min_length=1, max_length=100)]
        | None
    ) = None
    """Several keys in place of api_key, each in any of its forms or as {api_key: ..., limits: ...};
    requests go out with them in turn, and a key that is refused or paused is passed over."""
    headers: Annotated[
        Mapping[HeaderName, Secret],
        AfterValidator(_not_own),
        Field(json_schema_extra={"additionalProperties": False}),
    ] = Field(default={})
    """Further HTTP headers; a value may be {env: NAME}, or {file: PATH}, which may change."""
    extra_body: Annotated[
        Mapping[str, object],
        Field(json_schema_extra={"patternProperties": {"": {}}, "additionalProperties": False}),
    ] = Field(default={})
    """Members of every request's body that the provider knows; a caller's own win."""
    drop_params: bool = False
    """Whether fields that the provider can't do are left out instead of refused with 400."""
    estimate_usage: bool = False
    """Whether tokens are counted here, roughly and marked so, where the provider tells none."""
    proxy: Annotated[Secret, AfterValidator(_proxy)] | None = None
    """http://user:password@host:port, {env: NAME} or {file: PATH}; env takes what HTTPS_PROXY,
    HTTP_PROXY and NO_PROXY say; null goes directly, whatever they say."""
    no_proxy: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Hosts that are reached directly: names and all below them, addresses, networks."""
    ca_file: Annotated[Path, existing_file()] | None = None
    """PEM file of the certificate authorities to trust instead of the usual ones."""
    client_cert: Annotated[Path, existing_file()] | None = None
    """PEM file of our own certificate, where the provider wants one."""
    client_key: Annotated[Path, existing_file()] | None = None
    """PEM file of its private key; null if that stands in the same file."""
    verify: bool = True
    """Whether the provider must prove who it is; false only for tests."""

    @property
    def keys(self) -> tuple[KeyWithLimits | Secret | Fetched, ...]:
        """All keys: the only one, several, or none."""
        if self.api_keys is not None:
            return self.api_keys
        return () if self.api_key is None else (self.api_key,)

    @model_validator(mode="before")
    @classmethod
    def _place(cls, value: object, info: ValidationInfo) -> object:
        given = section_of(value)
        kind = str(given.get("kind"))
        preset = PRESETS.get(_canonical(kind))
        if preset is None or "base_url" in given:
            return value
        if preset.base_url is None:
            raise wrong(f"base_url is missing: kind {kind} has no address of its own")
        filled = {**given, "base_url": preset.base_url}
        around: object = info.context
        known = isinstance(around, Surroundings) and around.environ.get(preset.key_variable or "")
        if known and "api_keys" not in given:
            filled.setdefault("api_key", {"env": preset.key_variable})
        return filled

    @field_validator("extra_body", mode="after")
    @classmethod
    def _not_ours(cls, value: Mapping[str, object]) -> Mapping[str, object]:
        for name in ("model", "messages", "stream", "n"):
            if name in value:
                raise wrong(f"{name} is the runner's own to set")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.api_key and self.api_keys:
            raise wrong("api_key and api_keys exclude each other")
        plain = [one.api_key if isinstance(one, KeyWithLimits) else one for one in self.keys]
        secrets = [one for one in plain if isinstance(one, Secret)]
        if len(set(secrets)) < len(secrets):
            raise wrong("two of the api_keys are the same, which has one limit and not two")
        tokens = {isinstance(one, Fetched) and one.command is None for one in plain}
        if len(tokens) > 1:
            raise wrong("api_keys are all tokens (oauth2, google), or none of them is")
        if self.keys and any(name.lower() == "authorization" for name in self.headers):
            raise wrong("api_key and the header authorization exclude each other")
        if self.ca_file and not self.verify:
            raise wrong("ca_file is of no use with verify: false")
        if self.client_key and not self.client_cert:
            raise wrong("client_key is of no use without client_cert")
        return self


class OpenAI(Remote):
    """A model behind an HTTP endpoint that speaks OpenAI's chat completions."""

    kind: Annotated[
        Literal[
            "openai",
            "open_ai",
            "azure",
            "deepseek",
            "groq",
            "litellm",
            "llama-cpp",
            "lm-studio",
            "mistral",
            "openrouter",
            "sglang",
            "tgi",
            "together",
            "vllm",
        ],
        AfterValidator(_canonical),
    ]
    """openai: any OpenAI-compatible endpoint; a provider's name: its endpoint and its ways."""
    organization: NonEmpty | None = None
    """Sent as OpenAI-Organization."""
    project: NonEmpty | None = None
    """Sent as OpenAI-Project."""
    api_version: NonEmpty | None = None
    """Azure's dated API, such as 2024-10-21; null speaks its v1 API. model is the deployment."""
    max_tokens_field: Literal["auto", "max_tokens", "max_completion_tokens"] = "auto"
    """What the limit of an answer is called; auto goes by the model's name."""

    serves: Annotated[tuple[WorkName, ...], Field(strict=False, min_length=1)] = ("chat",)
    """What the model can do: chat, embed, rerank, classify."""

    @model_validator(mode="after")
    def _check_azure(self) -> Self:
        if self.api_version is not None and self.kind != "azure":
            raise wrong("api_version is for kind azure only")
        return self


class OpenAIResponses(Remote):
    """A model behind OpenAI's Responses API."""

    kind: Literal["openai-responses"]
    """openai-responses: OpenAI's Responses API, answered as a chat completion."""
    organization: NonEmpty | None = None
    """Sent as OpenAI-Organization."""
    project: NonEmpty | None = None
    """Sent as OpenAI-Project."""


class Ollama(Remote):
    """A model at Ollama's own API."""

    kind: Literal["ollama"]
    """ollama: Ollama's own chat API."""


class Anthropic(Remote):
    """A model at Anthropic's Messages API."""

    kind: Literal["anthropic"]
    """anthropic: the Messages API; betas are asked for with the header anthropic-beta."""
    version: NonEmpty = "2023-06-01"
    """Sent as anthropic-version."""
    max_tokens: Annotated[int, whole(1, 10_000_000)] = 4096
    """The longest answer where the caller names none: the API wants a number."""


class Gemini(Remote):
    """A model of Gemini's at AI Studio, or at Vertex if it has a project."""

    kind: Literal["gemini"]
    """gemini: Gemini's own API."""
    project: NonEmpty | None = None
    """Google Cloud project; then Vertex is asked, and the key is a bearer token."""
    region: Annotated[str, text(r"^[a-z0-9-]+$", "a region such as europe-west4, or global")] = (
        "global"
    )
    """Region of that project."""

    @model_validator(mode="before")
    @classmethod
    def _place_vertex(cls, value: object) -> object:
        given = section_of(value)
        if given.get("project") is None or "base_url" in given:
            return value
        region = given.get("region", "global")
        host = "aiplatform" if region == "global" else f"{region}-aiplatform"
        return {**given, "base_url": f"https://{host}.googleapis.com/v1"}
