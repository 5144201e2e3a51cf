"""The configuration as a whole: what may stand in the file, and how it is read.

Whatever is wrong is found while the file is read, all of it together, a line a fault; what has been
read needs no further check.
"""

import ipaddress
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic.config import JsonDict

from orchestrator.errors import ConfigError
from orchestrator.reading.accounts import Budget, Ledger, Price
from orchestrator.reading.callers import Callers
from orchestrator.reading.credentials import Fetched, KeyWithLimits, OAuth2
from orchestrator.reading.faults import findings_in, nearest, path_text, report, shown
from orchestrator.reading.presets import PRESETS, inferred
from orchestrator.reading.quantities import whole, wrong
from orchestrator.reading.references import Secret, Surroundings
from orchestrator.reading.remote import (
    Anthropic,
    Gemini,
    Ollama,
    OpenAI,
    OpenAIResponses,
    Remote,
)
from orchestrator.reading.repeats import Cache, Idempotency
from orchestrator.reading.routes import Name, Route
from orchestrator.reading.schema import editor_schema
from orchestrator.reading.sections import (
    Breaker,
    Chaos,
    Concurrency,
    Limits,
    NonEmpty,
    Queue,
    Retry,
    Section,
    Server,
    Supervision,
    Timeouts,
    Torch,
    TorchEncoder,
)
from orchestrator.reading.text import Document, Finding, list_of, section_of

LOCAL_KINDS = ("torch", "torch-classify", "torch-embedding", "torch-rerank")
_MAX_FILE_BYTES = 1 << 20
OPEN_TO_ALL = (
    "other machines reach this address, and no key is asked for: name a file in callers.keys, or"
    " say callers.allow_anonymous: true"
)
_CREDENTIAL_HEADERS = ("authorization", "key", "token", "secret", "cookie")

Kind = Annotated[
    Torch | TorchEncoder | OpenAI | OpenAIResponses | Ollama | Anthropic | Gemini,
    Field(discriminator="kind"),
]


def _with_kind(runner: object) -> object:
    # without a docstring: what `wrong` makes is told as a line of the report
    given = {"model": runner} if isinstance(runner, str) else dict(section_of(runner))
    model = given.get("model")
    if "kind" in given or not isinstance(model, str):
        return runner
    known = inferred(model)
    if known is None:
        kinds = ", ".join(sorted({*LOCAL_KINDS, *PRESETS}))
        raise wrong(f"nothing is known of the model {shown(model)}: add kind, one of {kinds}")
    kind, name = known
    return {**given, "kind": kind, "model": name}


def _beside_names(schema: JsonDict) -> None:
    """Lets an editor take the short forms as well."""
    kinds = dict(schema)
    about = kinds.pop("description", None)
    named: JsonDict = {"required": ["model"], "not": {"required": ["kind"]}}
    schema.clear()
    if about is not None:
        schema["description"] = about
    schema["anyOf"] = [{"type": "string", "minLength": 1}, named, kinds]


class Deployment(Section):
    """One model behind one engine."""

    runner: Annotated[Kind, BeforeValidator(_with_kind), Field(json_schema_extra=_beside_names)]
    """What produces the tokens, chosen by kind; a well-known model's name is enough."""
    slots: Annotated[int, whole(1, 4096)] = 8
    """Requests that run at the same time."""
    concurrency: Concurrency | None = None
    """Fewer of them at a time, as many as prove to go well; null: always all slots."""
    context: Annotated[int, whole(1, 1_000_000_000)] | None = None
    """Tokens that prompt and answer may have together; a route tells the larger one by it."""
    prefill: bool = False
    """Whether the model goes on with a last message of the assistant, as a part of its own turn; a
    route with midstream: continue lets it finish an answer that broke off elsewhere."""
    queue: Queue = Queue()
    limits: Limits = Limits()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()
    timeouts: Timeouts = Timeouts()
    supervision: Supervision = Supervision()

    @model_validator(mode="after")
    def _check(self) -> Self:
        adapts = self.concurrency
        if adapts is not None and (adapts.max or adapts.min) > self.slots:
            name, number = ("max", adapts.max) if adapts.max else ("min", adapts.min)
            raise wrong(f"concurrency.{name} ({number}) is more than slots ({self.slots})")
        return self


class Config(Section):
    """The whole file."""

    server: Server = Server()
    deployments: Annotated[
        Mapping[Name, Deployment],
        Field(min_length=1, json_schema_extra={"additionalProperties": False}),
    ]
    """The models by name, at least one; each name is a route as well."""
    routes: Annotated[
        Mapping[Name, Route], Field(json_schema_extra={"additionalProperties": False})
    ] = Field(default={})
    """Further model names for callers, each with the deployments that serve it."""
    chaos: Chaos = Chaos()

    callers: Callers = Callers()
    idempotency: Idempotency = Idempotency()
    cache: Cache | None = None
    """Answers that are kept for requests in the same words; without this section none are."""
    prices: Annotated[
        Mapping[NonEmpty, Price], Field(json_schema_extra={"additionalProperties": False})
    ] = Field(default={})
    """What models cost, by their names' beginnings: the longest that fits is a model's price."""
    budgets: Annotated[tuple[Budget, ...], Field(strict=False)] = ()
    """What may be spent."""
    ledger: Ledger | None = None
    """Where usage is written down; without this section it isn't, and budgets begin anew at each
    start."""

    @property
    def all_routes(self) -> dict[str, tuple[str, ...]]:
        """Deployments by every model name that a caller may use, the file's routes first."""
        own = {name: (name,) for name in self.deployments}
        return {name: route.deployments for name, route in self.routes.items()} | own

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works but should be mended, a line each."""
        return tuple(
            f"{path_text(path)}: the secret stands in the file; use {{env: NAME}} or {{file: PATH}}"
            for path, secret in self._secrets()
            if secret.origin == "inline"
        )

    def covered_by(self, budget: Budget) -> tuple[str, ...]:
        """The deployments whose cost counts in a budget."""
        if budget.deployment not in {None, "*"}:
            return tuple(name for name in self.deployments if name == budget.deployment)
        if budget.route not in {None, "*"}:
            return self.all_routes.get(str(budget.route), ())
        return tuple(self.deployments)

    def without_price(self, deployments: Iterable[str]) -> str | None:
        """Names the first of these whose model has no price, as an error tells it; None if none."""
        for name in deployments:
            model = self.deployments[name].runner.model
            if not any(model.startswith(known) for known in self.prices):
                return (
                    f"prices has none for {shown(model)}, which deployment {name} runs, so nobody"
                    " knows what it costs: add one (0 if it is free), or say unknown_price: allow"
                )
        return None

    def _secrets(self) -> Iterator[tuple[tuple[str, ...], Secret]]:
        for name, deployment in self.deployments.items():
            runner = deployment.runner
            if not isinstance(runner, Remote):
                continue
            path = ("deployments", name, "runner")
            several = runner.api_keys is not None
            for number, key in enumerate(runner.keys):
                place = (*path, "api_keys", str(number)) if several else (*path, "api_key")
                yield from _secrets_of(key, place)
            for header, value in runner.headers.items():
                # most headers are no secrets: these words tell those that are
                if any(word in header.lower() for word in _CREDENTIAL_HEADERS):
                    yield (*path, "headers", header), value


def _secrets_of(
    key: KeyWithLimits | Secret | Fetched, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Secret]]:
    match key:
        case KeyWithLimits():
            yield from _secrets_of(key.api_key, (*place, "api_key"))
        case Secret():
            yield place, key
        case Fetched(oauth2=OAuth2(client_secret=secret)):
            yield (*place, "oauth2", "client_secret"), secret
        case _:
            pass  # a fetched key isn't known yet


def load(
    path: str | Path, *, environ: Mapping[str, str] | None = None, secrets: bool = True
) -> Config:
    """Reads a YAML file.

    Args:
        path: The file; relative paths inside it start in its folder.
        environ: Where `{env: NAME}` looks; None is the process's own environment.
        secrets: Whether secrets are read; who only looks at files needs none, and has none.

    Raises:
        ConfigError: It can't be used; the message has a line for each fault.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ConfigError(f"{path}: the file can't be read: {reason}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes, which no config is")
    try:
        yaml = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        # not chained: the cause would quote the file, secrets included
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None
    folder = Path(path).absolute().parent
    return parse(yaml, str(path), folder=folder, environ=environ, secrets=secrets)


def parse(
    yaml: str,
    source: str = "<text>",
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> Config:
    """Reads YAML text.

    Args:
        yaml: The text.
        source: Its name in messages.
        folder: Where relative paths start; None is the working directory.
        environ: Where `{env: NAME}` looks; None is the process's own environment.
        secrets: Whether secrets are read; who only looks at files needs none, and has none.

    Raises:
        ConfigError: It can't be used; the message has a line for each fault.
    """
    document = Document(yaml, source)
    findings = list(document.findings)
    config = None
    if document.data is None and not findings:
        findings = [Finding(line=1, path=(), text="the file is empty; deployments is missing")]
    elif document.data is not None:
        findings += _route_findings(document)
        findings += _budget_findings(document)
        findings += _reach_findings(document)
        around = Surroundings(
            folder or Path.cwd(), os.environ if environ is None else environ, secrets
        )
        try:
            config = Config.model_validate(document.data, context=around)
        except ValidationError as error:
            findings += findings_in(error, document, schema())
        else:
            findings += _price_findings(config, document)
    # raised out here, so that no pydantic error with the values of secrets is chained to it
    if config is None or findings:
        first = min(findings, key=lambda finding: finding.line)
        raise ConfigError(report(source, findings), param=path_text(first.path) or None)
    return config


def schema() -> dict[str, object]:
    """The JSON Schema of the file; published as `config/gateway.schema.json`."""
    return editor_schema(Config)


def embedded_default() -> Path:
    """The file that is used where none is named: one small local model."""
    package = Path(__file__).parent
    installed = package / "gateway.yaml"  # only a wheel puts it there
    return installed if installed.exists() else package.parent / "config" / "gateway.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One deployment of one route, as `orchestrator check` prints it."""

    route: str
    place: int
    """0 for the preferred deployment, then in failover order."""
    deployment: str
    kind: str
    model: str
    endpoint: str
    """Where the model runs: the device, or the base URL."""
    slots: int
    queue: int
    requests_per_minute: int | None
    tokens_per_minute: int | None


def summary(config: Config) -> list[SummaryRow]:
    """What would run, a row for each deployment of each route."""
    return [
        _row(route, place, name, config.deployments[name])
        for route, names in config.all_routes.items()
        for place, name in enumerate(names)
    ]


def _row(route: str, place: int, name: str, deployment: Deployment) -> SummaryRow:
    runner = deployment.runner
    return SummaryRow(
        route=route,
        place=place,
        deployment=name,
        kind=runner.kind,
        model=runner.model,
        endpoint=runner.base_url if isinstance(runner, Remote) else runner.device,
        slots=deployment.slots,
        queue=deployment.queue.capacity,
        requests_per_minute=deployment.limits.requests_per_minute,
        tokens_per_minute=deployment.limits.tokens_per_minute,
    )


def _route_findings(document: Document) -> Iterator[Finding]:
    """Checks names across sections, in data that may be wrong in every other way."""
    deployments = section_of(section_of(document.data).get("deployments"))
    for route, section in section_of(section_of(document.data).get("routes")).items():
        path = ("routes", route)
        if route in deployments:
            text = "a deployment has this name, so it is a route already"
            yield Finding(line=document.line_of(path), path=path, text=text)
        names = list_of(section_of(section).get("deployments"))
        for index, name in enumerate(names):
            place = (*path, "deployments", index)
            if isinstance(name, str) and name not in deployments:
                text = f"no deployment {shown(name)}; {nearest(name, deployments)}"
                yield Finding(line=document.line_of(place), path=place, text=text)
            elif name in names[:index]:
                text = f"{shown(name)} is listed twice"
                yield Finding(line=document.line_of(place), path=place, text=text)
        if section_of(section).get("midstream") == "continue" and not any(
            section_of(deployments.get(str(name))).get("prefill") for name in names
        ):
            place = (*path, "midstream")
            text = "continue needs a deployment with prefill: true in the route, and none has it"
            yield Finding(line=document.line_of(place), path=place, text=text)
        for place, name in _further_names(section_of(section), path):
            if name not in names:
                text = (
                    f"no deployment {shown(name)} in this route; {nearest(name, map(str, names))}"
                )
                yield Finding(line=document.line_of(place), path=place, text=text)


def _further_names(
    route: Mapping[str, object], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Names of the route's deployments that stand elsewhere in it, each with its place."""
    for name in section_of(route.get("weights")):
        yield (*path, "weights", name), name
    for kind, action in section_of(route.get("failover")).items():
        for index, name in enumerate(list_of(action)):
            if isinstance(name, str):
                yield (*path, "failover", kind, index), name


def reach_fault(host: str, callers: Callers) -> str | None:
    """What is wrong with listening there, if other machines reach it and nobody is asked."""
    if callers.keys is not None or callers.jwt is not None or callers.allow_anonymous:
        return None
    return None if _is_loopback(host) else OPEN_TO_ALL


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reach_findings(document: Document) -> Iterator[Finding]:
    """Looks whether a gateway without keys is for this machine alone."""
    root = section_of(document.data)
    host, callers = section_of(root.get("server")).get("host"), section_of(root.get("callers"))
    asks = callers.get("keys") or callers.get("jwt") or callers.get("allow_anonymous") is True
    if isinstance(host, str) and host.strip() and not asks and not _is_loopback(host):
        path = ("server", "host")
        yield Finding(line=document.line_of(path), path=path, text=OPEN_TO_ALL)


def _price_findings(config: Config, document: Document) -> Iterator[Finding]:
    """Checks that what a budget in USD covers has a price: it could not be held else."""
    for index, budget in enumerate(config.budgets):
        if budget.usd is None or budget.unknown_price == "allow":
            continue
        text = config.without_price(config.covered_by(budget))
        if text is not None:
            path = ("budgets", index, "usd")
            yield Finding(line=document.line_of(path), path=path, text=text)


def _budget_findings(document: Document) -> Iterator[Finding]:
    """Checks that what budgets limit is there; whoever calls is known to keys alone."""
    root = section_of(document.data)
    deployments, routes = section_of(root.get("deployments")), section_of(root.get("routes"))
    known = {"deployment": deployments, "route": {**routes, **deployments}}
    for index, budget in enumerate(list_of(root.get("budgets"))):
        for scope, names in known.items():
            name = section_of(budget).get(scope)
            if isinstance(name, str) and name != "*" and name not in names:
                path = ("budgets", index, scope)
                text = f"no {scope} {shown(name)}; {nearest(name, names)}"
                yield Finding(line=document.line_of(path), path=path, text=text)
