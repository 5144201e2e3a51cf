"""The sections of the YAML that stand below a deployment or beside all of them.

One frozen model a section, in the order of the file; the text below each key is what an editor
shows. A section or key that is left out, or left empty, takes its default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic.config import JsonDict

from orchestrator.reading.quantities import duration_text, seconds, share, size, text, whole, wrong
from orchestrator.reading.references import folder_place, model_place

Count = Annotated[int, whole(1, 1_000_000_000)]
Duration = Annotated[float, seconds()]
NonEmpty = Annotated[str, text(r"^\S(.*\S)?$", "a text that isn't empty, without blanks around it")]

RetryableCode = Literal[
    "upstream_error",
    "upstream_unreachable",
    "upstream_server_error",
    "upstream_overloaded",
    "upstream_timeout",
    "upstream_truncated",
    "upstream_protocol_error",
    "upstream_conflict",
    "upstream_rate_limited",
    "worker_error",
    "worker_crashed",
    "worker_hung",
    "worker_start_failed",
]
"""Codes of errors after which the same deployment may be tried again."""


def _nullable_unless_required(schema: JsonDict) -> None:
    if "required" not in schema:
        schema["type"] = ["object", "null"]


class Section(BaseModel):
    """What every section has in common: strict, frozen, and no key that it doesn't know."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        json_schema_extra=_nullable_unless_required,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: object) -> object:
        # a section whose keys are all commented out is null to YAML, and means its defaults
        return {} if value is None else value


class Server(Section):
    """Where the gateway listens, and how it stops."""

    host: NonEmpty = "127.0.0.1"
    """Address to listen on; 127.0.0.1 is reachable from this machine only."""
    port: Annotated[int, whole(0, 65535)] = 8080
    """Port to listen on; 0 takes any that is free."""
    drain: Annotated[float, seconds(0.0)] = 30.0
    """How long running requests may go on after a stop signal."""
    max_body: Annotated[int, size(2**10, 2**30)] = 10 * 2**20
    """Largest request body; a larger one is answered with 413."""
    max_bodies: Annotated[int, size(2**20, 2**44)] = 512 * 2**20
    """All bodies larger than 256 KiB together, from their first byte until their answers' end; what
    is more is answered with 429."""
    head_timeout: Duration = 10.0
    """How long a request's head may take to come; a slower one is answered with 408."""
    body_timeout: Duration = 60.0
    """Longest pause within a request's body, and a tenth of what all of it may take."""
    idle_timeout: Annotated[float, seconds(1.0)] = 75.0
    """How long a connection stays open between two requests."""
    max_connections: Annotated[int, whole(1, 1_000_000)] = 4096
    """Connections at the same time, or as many as the limit on open files leaves room for; on more
    only probes are answered, all else with 503."""
    keep_alive: Annotated[float, seconds(0.1)] = 15.0
    """Silence in a stream after which a comment goes out, once its first token has."""
    resume_window: Annotated[float, seconds(0.0)] = 0.0
    """How long a client whose connection broke may stay away and still get the rest of its stream
    (Last-Event-ID); 0s ends an answer with its connection."""
    explain: Literal["on_request", "always", "never"] = "on_request"
    """Who is told a request's attempts in x-orchestrator-* headers: who asks with
    x-orchestrator-explain: 1, everybody or nobody."""
    resume_memory: Annotated[int, size(2**20, 2**40)] = 64 * 2**20
    """What all those streams may take; of more the oldest events go first, and a stream that finds
    no room can't be come back to."""
    access_log: bool = True
    """Whether each request is one line in the log; prompts never are."""


class Chaos(Section):
    """Breaking this gateway on purpose, see `orchestrator chaos`; not where users depend on it."""

    enabled: bool = False
    """Whether `orchestrator chaos` may attach, look inside, kill models and block the loop."""
    state_dir: Annotated[Path, folder_place()] | None = None
    """Folder for the socket through which it attaches, which only this user may enter; null is
    chaos-state in the working directory."""


class LocalModel(Section):
    """What all models on this machine have in common, each in a process of its own."""

    model: Annotated[str, model_place()]
    """package:NAME/FILE, a .gguf file, a folder (./, ../ and ~/ are understood) or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Number format of the weights; auto takes what the model was saved in."""
    device: Annotated[
        str, text(r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$", "auto, cpu, cuda, cuda:N or mps")
    ] = "auto"
    """Where the model runs; auto takes a GPU if there is one."""
    threads: Annotated[int, whole(1, 1024)] | None = None
    """CPU threads for the model; null takes one less than there are cores."""
    memory: Annotated[int, size(256 * 2**20, 2**44)] | None = None
    """Memory that its process may take, weights included; null is no limit."""
    niceness: Annotated[int, whole(0, 19)] = 0
    """How far its process stands back behind others, as nice(1) has it."""
    spare: bool = False
    """Whether a second process waits with all but the model loaded, to take a dead one's place."""
    revision: NonEmpty | None = None
    """Branch, tag or commit of a hub model; null takes its newest."""
    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run on this machine."""


class Torch(LocalModel):
    """A model on this machine that chats, run by torch in a process of its own."""

    kind: Literal["torch"]
    """torch: a model on this machine."""
    context: Annotated[int, whole(16, 2**24)] | None = None
    """Tokens that a prompt and its answer may have together; null is what the model can."""
    max_batch_tokens: Annotated[int, whole(1024, 2**30)] = 16_384
    """Tokens that all running requests may hold in the model's memory, prompts included."""


class TorchEncoder(LocalModel):
    """A model on this machine that reads texts: it makes vectors, ranks or classifies."""

    kind: Literal["torch-embedding", "torch-rerank", "torch-classify"]
    """What the model is for: vectors of texts, documents by a query, or classes of texts."""
    pooling: Literal["mean", "cls", "last", "max"] | None = None
    """How the vectors of a text's tokens become one; null is as the model's own files say."""
    normalize: bool | None = None
    """Whether vectors get the length 1; null is as the model's own files say."""
    max_length: Annotated[int, whole(2, 1_000_000)] | None = None
    """Tokens of a text that are read; null is as the model's own files say."""
    truncate: bool = True
    """Whether a longer text is cut, or else answered with 400."""
    batch_tokens: Annotated[int, whole(1, 1_000_000)] = 2048
    """Tokens that go through the model at once, texts of any length together."""
    max_items: Annotated[int, whole(1, 10_000_000)] = 8192
    """Texts of all requests that its process may hold; one request with more is answered with 413,
    one for which there is no room now with 429."""
    max_tokens: Annotated[int, whole(1, 1_000_000_000)] = 1_000_000
    """The same of tokens, by an estimate of 4 bytes each."""
    cache: Annotated[int, size(2**20, 2**40)] | None = None
    """Memory for results of texts, which then aren't computed anew when they come again; null keeps
    none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind != "torch-embedding":
            for key in ("pooling", "normalize"):
                if cast("object", getattr(self, key)) is not None:
                    raise wrong(f"{key} is for torch-embedding, not for {self.kind}")
        return self


class Queue(Section):
    """Requests that wait for a slot."""

    capacity: Annotated[int, whole(1, 1_000_000)] = 256
    """Requests that may wait."""
    aging: Duration | None = 30.0
    """A request that waits rises by one priority each time; null: it never does."""
    on_full: Literal["reject", "wait", "failover"] = "failover"
    """What one more meets: 429; the next deployment, else an extra place; the next, else 429."""
    waiting: Annotated[int, whole(1, 1_000_000)] | None = None
    """Extra places with on_full: wait; null is 256."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.waiting is not None and self.on_full != "wait":
            raise wrong(f"waiting is for on_full: wait, not for on_full: {self.on_full}")
        return self


class Concurrency(Section):
    """How many requests run at the same time, where that is found out by trying."""

    min: Annotated[int, whole(1, 4096)] = 1
    """Requests that may always run."""
    max: Annotated[int, whole(1, 4096)] | None = None
    """Requests that run at most; null is as many as there are slots."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise wrong(f"min ({self.min}) is more than max ({self.max})")
        return self


class Limits(Section):
    """What may be sent to the model with one key; null is no limit."""

    requests_per_minute: Count | None = None
    """Attempts that may start in any minute."""
    tokens_per_minute: Count | None = None
    """Tokens, prompts and answers together, in any minute."""
    input_tokens_per_minute: Count | None = None
    """Tokens of prompts in any minute, where the provider counts them apart."""
    output_tokens_per_minute: Count | None = None
    """Tokens of answers in any minute, where the provider counts them apart."""
    concurrency: Annotated[int, whole(1, 4096)] | None = None
    """Attempts that may run at the same time."""
    shared: bool = True
    """Whether deployments that send the same key to the same model have these limits in common, as
    the provider has it; the lowest of each kind counts. false: each has its own part."""
    learn: bool = True
    """Whether a provider's own word counts too: what its headers say is left, and its 429, which
    slows the key down."""


class Retry(Section):
    """When and how often an attempt is repeated while nothing has been delivered."""

    max_attempts: Annotated[int, whole(1, 20)] = 3
    """Attempts of one request at this deployment, the first included."""
    initial_backoff: Duration = 0.2
    """Longest wait before the second attempt; it doubles with each one."""
    max_backoff: Duration = 10.0
    """Longest wait between two attempts, a provider's Retry-After included."""
    attempts: Annotated[
        Mapping[RetryableCode, Annotated[int, whole(1, 20)]],
        Field(json_schema_extra={"additionalProperties": False}),
    ] = Field(default={})
    """Attempts by the code of what failed, in place of max_attempts; 1 is not repeated."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ascending("initial_backoff", self.initial_backoff, "max_backoff", self.max_backoff)
        return self


class Breaker(Section):
    """When a deployment that keeps failing is left alone for a while."""

    failure_threshold: Annotated[int, whole(1, 10_000)] = 10
    """Failures in a row that open it."""
    failure_rate: Annotated[float, share()] = 0.6
    """Share of the attempts within the window whose failure opens it too; 1 takes all of them."""
    window: Duration = 60.0
    """The time in which that share is counted."""
    min_calls: Annotated[int, whole(1, 1_000_000)] = 4
    """Attempts within the window below which no share opens it."""
    open_for: Duration = 30.0
    """How long nothing is tried once it is open; twice as long each time that it opens again."""
    max_open_for: Duration = 300.0
    """The longest that nothing is tried."""
    probes: Annotated[int, whole(1, 100)] = 1
    """Attempts let through to see whether it can close again."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "max_open_for" in self.model_fields_set:  # its default is no lower bound of open_for
            _ascending("open_for", self.open_for, "max_open_for", self.max_open_for)
        return self


class Timeouts(Section):
    """How long a step may take without progress, and a request in all."""

    connect: Duration = 5.0
    """Until the connection to a provider stands."""
    first_token: Duration = 60.0
    """From then to the first token."""
    first_step: Duration = 120.0
    """Until the first step of a local model after a load is done, which may compile what later
    steps use; `first_token` where that is longer."""
    inter_token: Duration = 20.0
    """Between two tokens."""
    total: Duration = 600.0
    """From acceptance to the end, waiting and retries included."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for step in ("connect", "first_token", "inter_token"):
            _ascending(step, cast("float", getattr(self, step)), "total", self.total)
        if (
            "first_step" in self.model_fields_set
        ):  # its default mustn't stand in a short total's way
            _ascending("first_step", self.first_step, "total", self.total)
        return self


class Supervision(Section):
    """What happens after a worker or the whole engine has failed."""

    max_restarts: Annotated[int, whole(0, 1000)] = 5
    """Restarts of workers within the time below; one more poisons the engine."""
    within: Duration = 30.0
    """The time in which restarts are counted."""
    initial_backoff: Duration = 0.1
    """Wait before a restart; it doubles with each further one."""
    max_backoff: Duration = 5.0
    """Longest wait before a restart."""
    on_poison: Literal["restart", "stay"] = "restart"
    """restart: a poisoned engine is followed by a new one; stay: it waits for the platform."""
    start_timeout: Duration = 600.0
    """How long a runner may take to start, loading its model included."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ascending("initial_backoff", self.initial_backoff, "max_backoff", self.max_backoff)
        return self


def _ascending(low: str, low_seconds: float, high: str, high_seconds: float) -> None:
    if low_seconds > high_seconds:
        low_text, high_text = duration_text(low_seconds), duration_text(high_seconds)
        raise wrong(f"{low} ({low_text}) is longer than {high} ({high_text})")
