"""The command line: `orchestrator serve | check | submit | chat | usage | keys | models | chaos`.

A user's mistake is a line a fault on standard error, never a traceback. Exit codes: 0 done,
1 failed, 2 the configuration or the command line is wrong, 130 interrupted.
"""

import asyncio
import errno
import logging
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from typing_extensions import override

from orchestrator.callers.key import shown
from orchestrator.callers.making import NewKey, create_key, revoke_key
from orchestrator.callers.record import read_records
from orchestrator.config import Config, embedded_default, load, summary
from orchestrator.connect import connect
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.gateway.chunks import usage_object
from orchestrator.gateway.keys import (
    fault_of_budgets,
    file_of_keys,
    key_budgets,
    print_keys,
    print_new_key,
)
from orchestrator.gateway.listener import BindError
from orchestrator.gateway.screen import folding_table, plain_console, print_findings
from orchestrator.gateway.usage import print_usage
from orchestrator.plan import DeploymentPlan, plan_deployments
from orchestrator.reading.sections import LocalModel
from orchestrator.request import Message
from orchestrator.runners.torch.locate import locate
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream

FAILED = 1
WRONG = 2
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LogLevel(StrEnum):
    """How much the log tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Group(StrEnum):
    """What the rows of the ledger are added up by."""

    CALLER = "caller"
    ROUTE = "route"
    DEPLOYMENT = "deployment"
    MODEL = "model"
    OUTCOME = "outcome"
    DAY = "day"
    MONTH = "month"


class PriorityOption(StrEnum):
    """Priorities by name."""

    BACKGROUND = "background"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"


class UnknownPriceOption(StrEnum):
    """What becomes of a budget in USD over a model whose price nobody knows."""

    REFUSE = "refuse"
    ALLOW = "allow"


class PeriodOption(StrEnum):
    """The times that budgets are for."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


ConfigPath = Annotated[
    Path | None,
    typer.Argument(help="YAML file; without one, the embedded default runs a small local model."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; else the embedded default.")
]


def _show_version(asked: bool) -> None:  # noqa: FBT001 - typer's signature
    if asked:
        print(f"orchestrator {version('orchestrator')}")
        raise typer.Exit


@app.callback()
def orchestrate(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Takes inference requests, waits their turn, streams tokens, and is honest when it breaks.

    Models run on this machine or at a provider; one YAML file says which.

    [bold]Examples[/bold]

      orchestrator serve

      orchestrator check config/gateway.yaml

      orchestrator submit "Why is the sea salty?"
    """


@app.command()
def serve(
    config: ConfigPath = None,
    *,
    host: Annotated[str | None, typer.Option(help="Listen here instead.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen on this port; 0 takes a free one.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much goes to the log.")] = LogLevel.INFO,
    chaos_orders: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Runs the OpenAI-compatible gateway until a signal stops it.

    The first SIGTERM or ^C drains: nothing new is taken, what runs may finish within
    server.drain. A second one ends what is left at once.

    [bold]Examples[/bold]

      orchestrator serve

      orchestrator serve config/gateway.yaml --port 9000 --log-level warning
    """
    _log_to_stderr(log_level)
    with _mistakes_told():
        # FastAPI and its like are a quarter of what a command has to load, for this one alone
        from orchestrator.gateway.serve import serve as run_gateway  # noqa: PLC0415

        given = {"host": host, "port": port}
        changes = {name: value for name, value in given.items() if value is not None}

        def read() -> Config:
            found = _read(config)
            return found.model_copy(update={"server": found.server.model_copy(update=changes)})

        settings = read()
        if not settings.chaos.enabled and chaos_orders is None:
            run_gateway(settings, reread=read)
            return
        # stubs and planted bugs come with it, which no gateway needs that may not be broken
        from orchestrator.chaos.attendant.company import accompanied  # noqa: PLC0415

        with accompanied(settings, chaos_orders) as company:
            run_gateway(
                company.config,
                reread=lambda: company.adapted(read()),
                points=company.points,
                beside=company.beside,
            )


@app.command()
def check(
    config: ConfigPath = None,
    *,
    connected: Annotated[
        bool, typer.Option("--connect", help="Also ask every deployment for a first token.")
    ] = False,
    loaded: Annotated[
        bool, typer.Option("--load", help="Also load local models and ask them.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for each deployment that is asked.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Validates a configuration and shows what it would run; starts nothing.

    Each fault is one line: file, line, key, what was found and what is allowed. Exit code 2.

    With --connect it tells of each deployment whether it can be reached, its key is accepted, the
    model exists, and how long the first token takes, for which it asks it for a few tokens.
    Exit code 1 if any of that fails.

    [bold]Examples[/bold]

      orchestrator check config/gateway.yaml

      orchestrator check config/gateway.yaml --connect --json
    """
    with _mistakes_told():
        settings = _read(config)
        plans, _ = plan_deployments(settings)  # finds what only the runners know
        if connected or loaded:
            _connect(plans, limit=timeout, load=loaded, as_json=as_json)
            return
        _look_for_models(settings, config or embedded_default())
    rows = summary(settings)
    if as_json:
        print(msgspec.json.encode([asdict(row) for row in rows]).decode())
        return
    table = folding_table(
        *("route", "deployment", "runner", "model", "where", "slots", "queue", "limits / min")
    )
    for row in rows:
        requests, tokens = row.requests_per_minute, row.tokens_per_minute
        limits = [f"{requests} requests"] * bool(requests) + [f"{tokens} tokens"] * bool(tokens)
        table.add_row(
            row.route if row.place == 0 else f"  then ({row.place})",
            *(row.deployment, row.kind, row.model, row.endpoint),
            *(str(row.slots), str(row.queue), ", ".join(limits) or "none"),
        )
    plain_console().print(table)


@app.command()
def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads standard input.")],
    *,
    config: ConfigOption = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="A route's name.")] = None,
    priority: Annotated[str, typer.Option(help="background, normal, high or critical.")] = "normal",
    deadline: Annotated[
        float | None, typer.Option(help="Seconds for everything, loading included.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 to 2; 0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Above 0, up to 1.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled answer repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Ends the answer; may be given more than once.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object at the end, with usage and attempts.")
    ] = False,
) -> None:
    """Asks one question in this process and streams the answer; ^C cancels it.

    [bold]Examples[/bold]

      orchestrator submit "Why is the sea salty?" --max-tokens 60

      cat question.txt | orchestrator submit - --temperature 0 --json
    """
    _log_to_stderr(LogLevel.ERROR)
    if sys.stderr.isatty():  # loading a model takes seconds: whoever looks on is told
        logging.getLogger("orchestrator.plan").setLevel(logging.INFO)
    with _mistakes_told(), Orchestrator(_read(config)) as orchestrator:
        stream = orchestrator.submit(
            sys.stdin.read() if prompt == "-" else prompt,
            model,
            priority=priority,
            deadline=deadline,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop,
        )
        if as_json:
            print(_result_json(stream))
        else:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
            print()


@app.command()
def chat(
    route: Annotated[str | None, typer.Argument(help="A route's name; else the first.")] = None,
    *,
    config: ConfigOption = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 to 2; 0 is greedy.")] = None,
) -> None:
    """Talks with a model, line by line, until the input ends.

    What was said before is asked again with each line, so that the model knows of it. A failure is
    told and forgotten with its line.

    [bold]Examples[/bold]

      orchestrator chat

      orchestrator chat smollm2 --config mine.yaml --temperature 0
    """
    _log_to_stderr(LogLevel.ERROR)
    with _mistakes_told(), Orchestrator(_read(config)) as orchestrator:
        said: list[Message] = []
        while line := _next_line():
            said.append(Message("user", line))
            stream = orchestrator.submit(
                said, route, max_tokens=max_tokens, temperature=temperature
            )
            try:
                for chunk in stream:
                    print(chunk.text, end="", flush=True)
            except OrchestratorError as error:
                _complain(f"{error.code}: {' '.join(error.message.split())}")
                said.pop()
            else:
                said.append(Message("assistant", stream.result().text))
            print()


def _next_line() -> str:
    """Returns the next line that isn't blank, or nothing when there are no more."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    for line in sys.stdin:
        if line.strip():
            return line.strip()
    return ""


@app.command()
def usage(
    config: ConfigPath = None,
    *,
    by: Annotated[Group, typer.Option(help="What is added up.")] = Group.CALLER,
    since: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="From then on, in UTC."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Adds up what was asked, by the usage ledger that the configuration names.

    Failed attempts are nobody's bill and stand apart. Costs that are unknown are in no sum; how
    many there are stands under unpriced.

    [bold]Examples[/bold]

      orchestrator usage config/gateway.yaml --by day

      orchestrator usage config/gateway.yaml --since 2026-01-01 --json
    """
    with _mistakes_told():
        since_ms = 0 if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1000)
        print_usage(_read(config, secrets=False), by.value, since_ms=since_ms, as_json=as_json)


@app.command(
    add_help_option=False,  # its commands have their own
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
)
def chaos(context: typer.Context) -> None:
    """Breaks it on purpose, simulated and live, and says what that proved; chaos --help."""
    # the simulation and the reports come with it: a third of all imports, for this command alone
    from orchestrator.chaos.command.commands import app as chaos_app  # noqa: PLC0415

    chaos_app(args=context.args, prog_name="orchestrator chaos")


keys_app = typer.Typer(no_args_is_help=True, help="Makes, lists and revokes callers' API keys.")
app.add_typer(keys_app, name="keys")


@keys_app.command("create")
def create_api_key(
    caller: Annotated[str, typer.Argument(help="Whose requests they are, in budgets and usage.")],
    *,
    config: ConfigOption = None,
    route: Annotated[
        list[str] | None, typer.Option(help="A model it may ask for, more than once; else all.")
    ] = None,
    priority: Annotated[
        PriorityOption, typer.Option(help="The highest, and that of requests that name none.")
    ] = PriorityOption.NORMAL,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    budget_usd: Annotated[float | None, typer.Option(min=0, help="USD that it may spend.")] = None,
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that it may use.")
    ] = None,
    per: Annotated[PeriodOption, typer.Option(help="The time of the budget.")] = PeriodOption.MONTH,
    unknown_price: Annotated[
        UnknownPriceOption,
        typer.Option(help="Of models without a price, that a budget in USD covers."),
    ] = UnknownPriceOption.REFUSE,
    expires_in_days: Annotated[float | None, typer.Option(help="How long it is valid.")] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It opens /metrics and /admin, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, with all that is kept.")] = False,
) -> None:
    """Makes a key and prints it, this once; only a hash of it is kept.

    [bold]Examples[/bold]

      orchestrator keys create ann --config mine.yaml --route chat --budget-usd 20 --per day
    """
    with _mistakes_told():
        wanted = NewKey(
            caller=caller,
            routes=tuple(route) if route else None,
            priority=priority.value,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrent=max_concurrent,
            budgets=key_budgets(budget_usd, budget_tokens, per.value, unknown_price.value),
            expires_in_days=expires_in_days,
            admin=admin,
        )
        read = _read(config, secrets=False)
        made = create_key(
            file_of_keys(read),
            wanted,
            now=_unix_time(),
            fault_of=partial(fault_of_budgets, read),
        )
        print_new_key(*made, as_json=as_json)


@keys_app.command("list")
def list_api_keys(
    *,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Lists the keys: their beginnings, whose they are and what they may."""
    with _mistakes_told():
        records = read_records(file_of_keys(_read(config, secrets=False)))
        print_keys(records, _unix_time(), as_json=as_json)


@keys_app.command("revoke")
def revoke_api_key(
    key: Annotated[str, typer.Argument(help="Its id, or its beginning as it is listed.")],
    *,
    config: ConfigOption = None,
) -> None:
    """Revokes a key; a running gateway refuses it within a second."""
    with _mistakes_told():
        record = revoke_key(file_of_keys(_read(config, secrets=False)), key, now=_unix_time())
        print(f"revoked {shown(record.id)} of {record.caller}")


models_app = typer.Typer(no_args_is_help=True, help="Fetches, lists and removes models of the hub.")
app.add_typer(models_app, name="models")


@models_app.command("pull")
def pull_model(
    model: Annotated[str, typer.Argument(help="Its id on the hub, like owner/name.")],
    *,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
) -> None:
    """Fetches a model into the hub's cache, so that a deployment finds it there.

    [bold]Examples[/bold]

      orchestrator models pull sentence-transformers/all-MiniLM-L6-v2
    """
    with _mistakes_told():
        from orchestrator.runners.torch import hub  # noqa: PLC0415 - a second to load, for these alone

        print(hub.pull(model, revision))


@models_app.command("list")
def list_models(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Lists the models in the hub's cache with what they take of the disk."""
    from orchestrator.runners.torch import hub  # noqa: PLC0415 - a second to load, for these alone

    models = hub.held()
    if as_json:
        rows = [asdict(model) | {"path": str(model.path)} for model in models]
        print(msgspec.json.encode(rows).decode())
        return
    table = folding_table("model", "MiB", "revisions", "where")
    for model in models:
        size = f"{model.size_bytes / 2**20:.1f}"
        table.add_row(model.name, size, str(model.revisions), str(model.path))
    plain_console().print(table)


@models_app.command("rm")
def remove_model(
    model: Annotated[str, typer.Argument(help="Its id on the hub, as it is listed.")],
) -> None:
    """Removes a model with all its revisions from the hub's cache."""
    with _mistakes_told():
        from orchestrator.runners.torch import hub  # noqa: PLC0415 - a second to load, for these alone

        print(f"removed {model}: {hub.remove(model) / 2**20:.1f} MiB")


def _unix_time() -> float:
    return time.time()  # noqa: TID251 - a key's age is the calendar's


def main() -> None:
    """Runs the command line; the entry point `orchestrator`.

    Raises:
        OSError: Something that no command expects.
    """
    _open_what_is_closed()
    try:
        app()
    except KeyboardInterrupt:  # outside of a command: while something was imported
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _complain(f"the output can't be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
        sys.exit(FAILED)


def _open_what_is_closed() -> None:
    # a descriptor below 3 that is free would be given to the first socket, and closed as a stream
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _read(path: Path | None, *, secrets: bool = True) -> Config:
    config = load(path or embedded_default(), secrets=secrets)
    for warning in config.warnings:
        _complain(f"warning: {warning}")
    return config


def _look_for_models(settings: Config, path: Path) -> None:
    """Looks for the files of local models; asks no hub.

    Raises:
        ConfigError: Some aren't there; a line each.
    """
    faults: list[str] = []
    for name, deployment in settings.deployments.items():
        if not isinstance(deployment.runner, LocalModel):
            continue
        try:
            locate(deployment.runner.model)
        except ConfigError as error:
            faults.append(f"{path}: deployments.{name}.runner.model: {error.message}")
    if faults:
        raise ConfigError("\n".join(faults))


def _connect(plans: Sequence[DeploymentPlan], *, limit: float, load: bool, as_json: bool) -> None:
    findings = asyncio.run(connect(plans, limit=limit, load=load))
    print_findings(findings, as_json=as_json)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(FAILED)


def _result_json(stream: TokenStream) -> str:
    answer = stream.result()
    return msgspec.json.encode(
        {
            "id": stream.request_id,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "usage": usage_object(answer.usage),
            "attempts": [asdict(attempt) for attempt in answer.attempts],
        }
    ).decode()


@contextmanager
def _mistakes_told() -> Generator[None]:
    try:
        yield
    except ConfigError as error:
        _complain(error.message)
        raise typer.Exit(WRONG) from None
    except OrchestratorError as error:
        _complain(f"{error.code}: {' '.join(error.message.split())}")
        raise typer.Exit(FAILED) from None
    except BindError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:
        # whoever read the output has gone; the interpreter must not fail while it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


class _Lines(logging.Formatter):
    """Makes the text of a second once: it is a fifth of what a line costs."""

    _second = 0
    _text = ""

    @override
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._text},{int(record.msecs):03d}"


def _log_to_stderr(level: LogLevel) -> None:
    # what no line shows need not be found out for each
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("orchestrator").setLevel(level.upper())
