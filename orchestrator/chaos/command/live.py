"""`chaos live` and `chaos attack`: a real gateway is broken."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from orchestrator.chaos.attendant.bugs import bugs_named
from orchestrator.chaos.command.app import (
    app,
    folder_for,
    leave,
    mistakes_told,
    refuse,
    say,
    tell,
)
from orchestrator.chaos.command.judging import finish
from orchestrator.chaos.live.attack import attack as attack_once
from orchestrator.chaos.live.attack import fault_from
from orchestrator.chaos.live.options import Options
from orchestrator.chaos.live.run import run_live
from orchestrator.chaos.scenario.reading import find_scenario, runs_in
from orchestrator.chaos.scenario.slowing import slowed
from orchestrator.chaos.verdict.judgement import Outcome
from orchestrator.errors import ConfigError

Attach = Annotated[str, typer.Option("--target", help="Base URL of a gateway that runs.")]
StateDir = Annotated[
    Path | None, typer.Option(help="Its chaos.state_dir; ./chaos-state by default.")
]
Yes = Annotated[bool, typer.Option("--yes", help="A target beyond this machine is meant.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


@app.command()
def live(
    scenarios: Annotated[list[str], typer.Argument(help="Names, or paths of files.")],
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Start a gateway from this file; else one of stubs."),
    ] = None,
    stubs: Annotated[
        bool, typer.Option("--stubs", help="Stubs in place of that file's models and providers.")
    ] = False,
    route: Annotated[str, typer.Option(help="The model to ask for; the first by default.")] = "",
    target: Attach = "",
    state_dir: StateDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder for journal and reports.")] = None,
    dry: Annotated[bool, typer.Option("--dry", help="Only say what would be broken.")] = False,
    yes: Yes = False,
    planted: Annotated[
        str, typer.Option(help="Plant bugs, with commas, in the gateway that is started.")
    ] = "",
    slower: Annotated[
        float,
        typer.Option(min=1.0, help="All times longer, all rates lower by it, for slow models."),
    ] = 1.0,
    fail_on: Annotated[
        str, typer.Option(help="Exit codes that matter, as 1,5; all by default.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Breaks a real gateway: baseline, faults, heal, recovery, and a verdict from the journal.

    Without --config or --target it starts a gateway of stubs, as the scenario's system says. With
    --config real models are killed, and a fault proxy stands before each provider.

    [bold]Examples[/bold]

      orchestrator chaos live worker-crash-under-load

      orchestrator chaos live cut-streams stalls --config gateway.yaml --stubs

      orchestrator chaos live worker-crash-under-load --config config/gateway.yaml --slower 6

      orchestrator chaos live hang-and-wedge --target http://127.0.0.1:8080 --dry
    """
    codes: list[int] = []
    with mistakes_told():
        bugs_named(planted)
        matter = _codes(fail_on)
        for name in scenarios:
            scenario = slowed(find_scenario(name), slower)
            if lines := runs_in(scenario, "live"):
                refuse("\n".join(f"{name}: {line}" for line in lines))
            folder = folder_for(scenario.name, out if len(scenarios) == 1 else None)
            journal = asyncio.run(
                run_live(
                    Options(
                        scenario=scenario,
                        folder=folder,
                        named=name,
                        config=config,
                        stubs=stubs,
                        route=route,
                        attach=target,
                        state_dir=state_dir,
                        sure=yes,
                        dry=dry,
                        planted=planted,
                        slower=slower,
                        tell=lambda line: tell(f"{scenario.name}: {line}"),  # noqa: B023 - called within
                    )
                )
            )
            if not dry:
                codes.append(finish(journal, as_json=as_json))
    worst = max(codes, key=_rank, default=0)
    leave(worst if not matter or worst in matter else 0)


def _codes(text: str) -> set[int]:
    try:
        return {int(code) for code in text.split(",") if code.strip()}
    except ValueError:
        raise ConfigError(f"--fail-on {text}: numbers and commas are wanted") from None


RANKS = (
    Outcome.PASSED,
    Outcome.MISSED,
    Outcome.INCONCLUSIVE,
    Outcome.BASELINE_NOT_MET,
    Outcome.VIOLATED,
    Outcome.NOT_DETERMINISTIC,
    Outcome.RESIDUE,
    Outcome.INTERNAL_ERROR,
)
"""From the least telling to the most."""


def _rank(code: int) -> int:
    return RANKS.index(Outcome(code))


@app.command()
def attack(
    fault: Annotated[str, typer.Argument(help="Of a worker or the gateway; see list faults.")],
    *,
    target: Attach = "http://127.0.0.1:8080",
    state_dir: StateDir = None,
    whom: Annotated[str, typer.Option(help="The deployment; any by default.")] = "any",
    lasts: Annotated[str, typer.Option("--for", help="How long, as 5s.")] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, as in a scenario.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Does one fault to a gateway that runs, now, and undoes it on the way out.

    [bold]Examples[/bold]

      orchestrator chaos attack crash --target http://127.0.0.1:8080

      orchestrator chaos attack stop --for 5s --whom smollm2

      orchestrator chaos attack slow --for 10s --set duty=0.2
    """
    with mistakes_told():
        meant = fault_from(fault, whom=whom, lasts=lasts, settings=setting or [])
        landed = asyncio.run(attack_once(meant, target, state_dir or Path("chaos-state"), sure=yes))
    if as_json:
        say(msgspec.json.encode({"fault": fault, "landed": landed}).decode())
    else:
        say("\n".join(landed) or f"{fault} did not land")
    leave(0 if landed else Outcome.INCONCLUSIVE)
