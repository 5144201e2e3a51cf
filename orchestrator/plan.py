"""A deployment's part of the configuration, in the words of the inner settings.

What runs is built from plans. A test or a simulation makes its own, with a runner of its own, and
gets the very same system.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict, assert_never, cast

from orchestrator import config as sections
from orchestrator import metrics
from orchestrator.accounts import Accounts, Tariff
from orchestrator.actors.supervisor import Supervision
from orchestrator.config import Config
from orchestrator.ledger.ledger import Ledger, LedgerSettings
from orchestrator.policies.breaker import FailureRate
from orchestrator.policies.budget import EACH, Budget, Budgets, Scope
from orchestrator.policies.limits.settings import Account, RateLimits
from orchestrator.policies.pricing import Price, PriceTable
from orchestrator.policies.queue import OnFull
from orchestrator.policies.retry import RetrySettings
from orchestrator.reading.credentials import Fetched, Google, KeyWithLimits, OAuth2
from orchestrator.reading.presets import PRESETS
from orchestrator.reading.routes import Hedge
from orchestrator.reading.sections import LocalModel
from orchestrator.request import Work
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.routing.rules import Action, FailureKind, Rules
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import KeyAccess, StepLimits
from orchestrator.runners.remote.credentials import Credential, KeySource, file_source, text_in
from orchestrator.runners.remote.header_file import HeaderFile
from orchestrator.runners.remote.proxy import Proxy, proxy_for
from orchestrator.runners.torch.settings import EncoderSettings, Task, TorchSettings

ENCODER_TASKS: Mapping[str, Task] = {
    "torch-embedding": "embedding",
    "torch-rerank": "rerank",
    "torch-classify": "classify",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """See `policies.breaker.Breaker`."""

    failure_threshold: int = 10
    failure_rate: FailureRate | None = None
    open_for: float = 30.0
    """Seconds; so is the next."""
    max_open_for: float = 300.0
    probes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """See `policies.queue.PriorityQueue`."""

    aging: float | None = 30.0
    """Seconds."""
    on_full: OnFull = "failover"
    waiting: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlan:
    """One of several keys."""

    access: KeyAccess
    limits: RateLimits
    credential: Credential | None = None
    """What holds it, if it may change while the deployment runs."""
    account: Account | None = None
    """What its provider counts by; equal ones have their limits in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """All that a deployment is built from."""

    name: str
    factory: SlotFactory
    slots: int = 8
    queue_capacity: int = 256
    queue: QueueSettings = field(default_factory=QueueSettings)
    concurrency: tuple[int, int] | None = None
    """Least and most attempts at once, between which their number adapts; None: all slots."""
    limits: RateLimits = field(default_factory=RateLimits)
    retry: RetrySettings = field(default_factory=RetrySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    steps: StepLimits = field(default_factory=StepLimits)
    timeout: float = 600.0
    """Seconds that a request has, unless it says so itself."""
    start_timeout: float = 600.0
    """Seconds that a runner may take to get ready."""
    supervision: Supervision = field(default_factory=Supervision)
    credential: Credential | None = None
    """The key of its slots, or the first of several, if it may change while they run."""
    keys: Sequence[KeyPlan] = ()
    """The keys, if there are several."""
    account: Account | None = None
    """Of the only key, as in `KeyPlan`."""
    prefill: bool = False
    """Whether its provider goes on with a message of the assistant that comes last."""
    context: int | None = None
    """Tokens that prompt and answer may have together; None is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """A further name for callers, with the deployments behind it."""

    deployments: Sequence[str]
    policy: RoutePolicy = field(default_factory=RoutePolicy)


OnProgress = Callable[[str, str], None]
"""(deployment, what it is doing): steps of a model that is being loaded."""


def _log_progress(deployment: str, doing: str) -> None:
    logger.info("%s: %s", deployment, doing)


NONE_KEPT: Mapping[str, DeploymentPlan] = MappingProxyType({})


def plan_deployments(
    config: Config,
    on_progress: OnProgress = _log_progress,
    kept: Mapping[str, DeploymentPlan] = NONE_KEPT,
) -> tuple[list[DeploymentPlan], dict[str, RoutePlan]]:
    """Turns a configuration into plans and routes.

    Args:
        config: What it says.
        on_progress: Told what models do while they are loaded.
        kept: Plans by deployment that are taken as they are: those run already.

    Raises:
        ConfigError: A runner can't be made from it.
    """
    plans = [
        kept.get(name) or _plan(name, section, on_progress)
        for name, section in config.deployments.items()
    ]
    return plans, {name: _route(route) for name, route in config.routes.items()}


def _route(section: sections.Route) -> RoutePlan:
    given = dict(section.failover)
    actions = {cast("FailureKind", kind): action for kind, action in given.items() if action}
    return RoutePlan(
        deployments=section.deployments,
        policy=RoutePolicy(
            strategy=section.strategy,
            weights=section.weights,
            max_attempts=section.max_attempts,
            midstream=section.midstream,
            hedge=_hedge(section.hedge) if section.hedge else None,
            rules=Rules(cast("dict[FailureKind, Action]", actions)),
        ),
    )


def plan_accounts(config: Config) -> Accounts | None:
    """Makes the books that a configuration asks for; None if it asks for none.

    A ledger that can't be used is told when it is opened, not here.
    """
    limited = bool(config.budgets) or config.callers.keys is not None
    if config.ledger is None and not limited and not config.prices:
        return None
    ledger = config.ledger
    return Accounts(
        plan_tariffs(config),
        budgets=(
            Budgets(plan_budgets(config), time.time, on_exceeded=metrics.budget_exceeded)  # noqa: TID251 - the calendar's time
            if limited
            else None
        ),
        ledger=(
            Ledger(LedgerSettings(path=ledger.path, on_failure=ledger.on_failure))
            if ledger
            else None
        ),
        clock=time.time,  # noqa: TID251 - the ledger's rows carry the calendar's time
    )


def plan_tariffs(config: Config) -> Mapping[str, Tariff]:
    """What each deployment's model costs."""
    prices = PriceTable({name: _price(section) for name, section in config.prices.items()})
    return {
        name: Tariff(model=section.runner.model, price=prices.find(section.runner.model))
        for name, section in config.deployments.items()
    }


def plan_budgets(config: Config) -> Sequence[Budget]:
    """What may be spent, but for what belongs to single keys."""
    return [_budget(section) for section in config.budgets]


def _price(section: sections.Price) -> Price:
    return Price(
        input=section.input,
        cached_input=section.input if section.cached_input is None else section.cached_input,
        output=section.output,
        reasoning=section.output if section.reasoning is None else section.reasoning,
    )


def _budget(section: sections.Budget) -> Budget:
    scope: Scope = "caller" if section.caller else "route" if section.route else "deployment"
    return Budget(
        scope=scope,
        name=section.caller or section.route or section.deployment or EACH,
        per=section.per,
        nano_usd=section.usd,
        tokens=section.tokens,
        on_exceeded=section.on_exceeded,
    )


def _hedge(section: Hedge) -> HedgeSettings:
    after = section.after
    if isinstance(after, str):
        return HedgeSettings(percentile=int(after.removeprefix("p")) / 100, share=section.budget)
    return HedgeSettings(seconds=after, share=section.budget)


def _plan(name: str, section: sections.Deployment, on_progress: OnProgress) -> DeploymentPlan:
    timeouts, rules = section.timeouts, section.supervision
    keys = _keys(section)
    credential = keys[0].credential if keys else None
    return DeploymentPlan(
        name=name,
        factory=_factory(name, section.runner, on_progress, keys[0] if keys else None),
        credential=credential,
        account=keys[0].account if keys else None,
        context=section.context,
        prefill=section.prefill,
        keys=keys if len(keys) > 1 else (),
        slots=section.slots,
        queue_capacity=section.queue.capacity,
        queue=QueueSettings(
            aging=section.queue.aging,
            on_full=section.queue.on_full,
            waiting=section.queue.waiting or QueueSettings().waiting,
        ),
        concurrency=_concurrency(section),
        limits=keys[0].limits if keys else _limits(section.limits, section.runner),
        retry=RetrySettings(
            max_attempts=section.retry.max_attempts,
            initial_backoff=section.retry.initial_backoff,
            max_backoff=section.retry.max_backoff,
            attempts={**section.retry.attempts},
        ),
        breaker=BreakerSettings(
            failure_threshold=section.breaker.failure_threshold,
            failure_rate=FailureRate(
                share=section.breaker.failure_rate,
                window=section.breaker.window,
                min_calls=section.breaker.min_calls,
            ),
            open_for=section.breaker.open_for,
            max_open_for=max(section.breaker.open_for, section.breaker.max_open_for),
            probes=section.breaker.probes,
        ),
        steps=StepLimits(
            connect=timeouts.connect,
            first_step=max(timeouts.first_step, timeouts.first_token),
            first_token=timeouts.first_token,
            inter_token=timeouts.inter_token,
        ),
        timeout=timeouts.total,
        start_timeout=rules.start_timeout,
        supervision=Supervision(
            max_restarts=rules.max_restarts,
            within=rules.within,
            initial_backoff=rules.initial_backoff,
            max_backoff=rules.max_backoff,
            on_poison=rules.on_poison,
        ),
    )


def _concurrency(section: sections.Deployment) -> tuple[int, int] | None:
    adapts = section.concurrency
    return None if adapts is None else (adapts.min, adapts.max or section.slots)


def _factory(
    name: str, runner: sections.Kind, on_progress: OnProgress, key: KeyPlan | None
) -> SlotFactory:
    # the one place for lazy imports: a runner's libraries are loaded only if it is configured
    match runner:
        case sections.Torch():
            from orchestrator.runners.torch.runner import factory as torch_factory  # noqa: PLC0415

            settings = replace(
                _local(name, runner, None),
                context=runner.context,
                max_batch_tokens=runner.max_batch_tokens,
            )
            return torch_factory(settings, on_progress=partial(on_progress, name))
        case sections.TorchEncoder():
            from orchestrator.runners.torch.encoders.room import Room  # noqa: PLC0415
            from orchestrator.runners.torch.encoders.runner import (  # noqa: PLC0415
                factory as encoder_factory,
            )

            return encoder_factory(
                _encoder(name, runner),
                on_progress=partial(on_progress, name),
                room=Room(items=runner.max_items, tokens=runner.max_tokens),
            )
        case sections.OpenAI():
            from orchestrator.runners.remote import openai  # noqa: PLC0415

            preset = PRESETS[runner.kind]
            return openai.factory(
                openai.OpenAISettings(
                    organization=runner.organization,
                    project=runner.project,
                    azure=runner.kind == "azure",
                    api_version=runner.api_version,
                    max_tokens_field=runner.max_tokens_field,
                    serves=tuple(map(Work, runner.serves)),
                    renamed=preset.renamed,
                    unsupported=preset.unsupported,
                    left_out=preset.left_out,
                    stream_options=preset.stream_options,
                    **_common(name, runner, key),
                )
            )
        case sections.OpenAIResponses():
            from orchestrator.runners.remote import responses  # noqa: PLC0415

            return responses.factory(
                responses.OpenAISettings(
                    organization=runner.organization,
                    project=runner.project,
                    **_common(name, runner, key),
                )
            )
        case sections.Ollama():
            from orchestrator.runners.remote import ollama  # noqa: PLC0415

            return ollama.factory(ollama.RemoteSettings(**_common(name, runner, key)))
        case sections.Anthropic():
            from orchestrator.runners.remote import anthropic  # noqa: PLC0415

            return anthropic.factory(
                anthropic.AnthropicSettings(
                    version=runner.version,
                    max_tokens=runner.max_tokens,
                    **_common(name, runner, key),
                )
            )
        case sections.Gemini():
            from orchestrator.runners.remote import gemini  # noqa: PLC0415

            return gemini.factory(
                gemini.GeminiSettings(
                    project=runner.project,
                    region=runner.region,
                    **_common(name, runner, key),
                )
            )
        case _:
            assert_never(runner)


def _encoder(name: str, runner: sections.TorchEncoder) -> TorchSettings:
    return _local(
        name,
        runner,
        EncoderSettings(
            task=ENCODER_TASKS[runner.kind],
            pooling=runner.pooling,
            normalize=runner.normalize,
            max_length=runner.max_length,
            truncate=runner.truncate,
            batch_tokens=runner.batch_tokens,
            cache=runner.cache or 0,
        ),
    )


def _local(name: str, runner: LocalModel, encoder: EncoderSettings | None) -> TorchSettings:
    return TorchSettings(
        deployment=name,
        model=runner.model,
        dtype=runner.dtype,
        device=runner.device,
        threads=runner.threads,
        memory=runner.memory,
        niceness=runner.niceness,
        spare=runner.spare,
        trust_remote_code=runner.trust_remote_code,
        revision=runner.revision,
        encoder=encoder,
    )


class _Common(TypedDict):
    """What the settings of all remote runners have in common, by their names."""

    base_url: str
    model: str
    api_key: Callable[[], str] | None
    renew: Callable[[str], Awaitable[None]] | None
    bearer: bool
    headers: Mapping[str, str]
    header_files: Mapping[str, Callable[[], str]]
    extra_body: Mapping[str, object]
    drop_params: bool
    estimate_usage: bool
    provider: str
    proxy: Proxy | None
    ca_file: str | None
    client_cert: tuple[str, str | None] | None
    verify: bool


def _common(name: str, runner: sections.Remote, key: KeyPlan | None) -> _Common:
    credential = key.credential if key else None
    return {
        "base_url": runner.base_url,
        "model": runner.model,
        "api_key": key.access.read if key else None,
        "renew": key.access.renew if key else None,
        "bearer": credential.source.token if credential else False,
        "headers": {
            key: value.reveal() for key, value in runner.headers.items() if value.path is None
        },
        "header_files": {
            key: HeaderFile(value.path, value.reveal())
            for key, value in runner.headers.items()
            if value.path is not None
        },
        "extra_body": runner.extra_body,
        "drop_params": runner.drop_params,
        "estimate_usage": runner.estimate_usage,
        "provider": name,
        "proxy": _proxy(runner, runner.base_url),
        "ca_file": _path(runner.ca_file),
        "client_cert": (
            (str(runner.client_cert), _path(runner.client_key)) if runner.client_cert else None
        ),
        "verify": runner.verify,
    }


def _proxy(runner: sections.Remote, url: str) -> Proxy | None:
    return proxy_for(url, runner.proxy and runner.proxy.reveal(), runner.no_proxy)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _limits(section: sections.Limits, runner: sections.Kind) -> RateLimits:
    return RateLimits(
        requests_per_minute=section.requests_per_minute,
        tokens_per_minute=section.tokens_per_minute,
        input_tokens_per_minute=section.input_tokens_per_minute,
        output_tokens_per_minute=section.output_tokens_per_minute,
        concurrency=section.concurrency,
        learn=section.learn and isinstance(runner, sections.Remote),
    )


def _keys(section: sections.Deployment) -> list[KeyPlan]:
    runner = section.runner
    if not isinstance(runner, sections.Remote):
        return []
    plans: list[KeyPlan] = []
    for given in runner.keys:
        key = given.api_key if isinstance(given, KeyWithLimits) else given
        own = given.limits if isinstance(given, KeyWithLimits) else None
        said = own or section.limits
        account = Account(runner.base_url, runner.model, key) if said.shared else None
        limits = _limits(said, runner)
        if isinstance(key, Fetched):
            credential = Credential(_key_source(key, partial(_proxy, runner)))
        elif key.path is not None:
            credential = Credential(file_source(key.path), key.reveal())
        else:
            plans.append(KeyPlan(access=KeyAccess(key.reveal), limits=limits, account=account))
            continue
        access = KeyAccess(credential.read, credential.renew)
        plans.append(KeyPlan(access=access, limits=limits, credential=credential, account=account))
    return plans


def _key_source(fetched: Fetched, proxy: Callable[[str], Proxy | None]) -> KeySource:
    match fetched.way:
        case OAuth2() as client:
            from orchestrator.runners.remote import token_endpoint  # noqa: PLC0415

            secret = client.client_secret
            return token_endpoint.client_credentials_source(
                token_endpoint.TokenEndpoint(
                    url=client.token_url,
                    ca_file=_path(client.ca_file),
                    proxy=proxy(client.token_url),
                ),
                token_endpoint.ClientCredentials(
                    client_id=client.client_id,
                    client_secret=partial(text_in, secret.path) if secret.path else secret.reveal,
                    scope=client.scope,
                    params=client.params,
                    auth=client.auth,
                ),
            )
        case Google() as account:
            from orchestrator.runners.remote.google_account import google_source  # noqa: PLC0415

            return google_source(account.file, account.scopes, _path(account.ca_file), proxy)
        case command:
            from orchestrator.runners.remote.key_command import command_source  # noqa: PLC0415

            return command_source(command, fetched.ttl)
