"""`chaos sim`, `replay`, `shrink` and `selftest`: the whole system in virtual time."""

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from orchestrator.chaos.command.app import app, leave, mistakes_told, refuse, say, tell
from orchestrator.chaos.command.past import run_as_of
from orchestrator.chaos.scenario.reading import find_scenario, runs_in
from orchestrator.chaos.simulation import __main__ as shell
from orchestrator.chaos.simulation.campaign import Settings
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.mutants.planting import planted
from orchestrator.chaos.simulation.plan import Plan, plan_from_json
from orchestrator.chaos.simulation.shrink import MAX_RUNS, Shrinker, size_of
from orchestrator.errors import ConfigError


class Mode(StrEnum):
    """What is judged."""

    SAFETY = "safety"
    LIVENESS = "liveness"


Modes = Annotated[Mode, typer.Option(help="safety: any faults; liveness: all must come back.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
Grid = Annotated[
    float | None,
    typer.Option(min=0.0, help="Milliseconds on whose multiples timers meet; else the seed says."),
]
ScenarioName = Annotated[str, typer.Option("--scenario", help="What the seed plays.")]


@app.command()
def sim(
    scenario: Annotated[
        str, typer.Argument(help="Name or file; without one each seed draws a run of its own.")
    ] = "",
    *,
    seeds: Annotated[str, typer.Option(help="A:B, from A to B - 1.")] = "0:200",
    jobs: Jobs = 1,
    mode: Modes = Mode.SAFETY,
    check_determinism: Annotated[
        bool, typer.Option(help="Each seed twice; both must leave the same trace.")
    ] = False,
    grid: Grid = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds after which no further seed counts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Runs seeds through the real system in virtual time, with faults.

    A scenario's expectations are judged too, but for its recovery, which is timed live.

    [bold]Examples[/bold]

      orchestrator chaos sim --seeds 0:2000 --jobs 2

      orchestrator chaos sim swizzle --seeds 0:50 --check-determinism
    """
    arguments = ["--seeds", seeds, "--jobs", str(jobs), "--mode", mode]
    if scenario:
        with mistakes_told():
            if lines := runs_in(find_scenario(scenario), "sim"):
                refuse("\n".join(lines))
        arguments += ["--scenario", scenario]
    arguments += _with_grid(grid)
    arguments += ["--time-limit", str(time_limit)] if time_limit is not None else []
    if check_determinism:
        arguments.append("--check-determinism")
    if as_json:
        arguments.append("--json")
    with mistakes_told():
        code = shell.main(arguments)
    leave(code)


@app.command()
def replay(
    seed: Annotated[str, typer.Argument(help="A seed, or the JSON file of a plan.")],
    *,
    mode: Modes = Mode.SAFETY,
    scenario: ScenarioName = "",
    trace: Annotated[Path | None, typer.Option(help="Where the journal goes.")] = None,
    show_plan: Annotated[bool, typer.Option(help="Print the plan as JSON.")] = False,
    grid: Grid = None,
    commit: Annotated[
        str, typer.Option(help="As that commit of this checkout ran it; the tree stays as it is.")
    ] = "",
) -> None:
    """Runs one seed or plan again, exactly as it was, and tells all of it.

    [bold]Examples[/bold]

      orchestrator chaos replay 42 --trace trace.ndjson

      orchestrator chaos replay smallest.json

      orchestrator chaos replay 42 --commit 6ad03ec
    """
    what = ["--replay", seed] if seed.isdecimal() else ["--plan", str(Path(seed).absolute())]
    arguments = [*what, "--mode", mode, *_with_grid(grid)]
    arguments += ["--scenario", scenario] if scenario else []
    arguments += ["--trace", str(trace.absolute())] if trace is not None else []
    arguments += ["--show-plan"] if show_plan else []
    with mistakes_told():
        code = run_as_of(commit, arguments) if commit else shell.main(arguments)
    leave(code)


def _with_grid(grid: float | None) -> list[str]:
    return [] if grid is None else ["--grid", str(grid)]


@app.command()
def shrink(
    seed: Annotated[str, typer.Argument(help="A seed that fails, or the JSON file of a plan.")],
    *,
    mode: Modes = Mode.SAFETY,
    scenario: ScenarioName = "",
    out: Annotated[Path, typer.Option(help="Where the smallest plan goes.")] = Path("plan.json"),
    planted_bug: Annotated[
        str, typer.Option("--planted", help="With a bug of the selftest, to see it shrink.")
    ] = "",
    max_runs: Annotated[int, typer.Option(min=1, help="Runs at most.")] = MAX_RUNS,
) -> None:
    """Makes a failing run as small as it can be, and writes it down as a plan that replays.

    [bold]Examples[/bold]

      orchestrator chaos shrink 31337 --out smallest.json

      orchestrator chaos shrink 7 --planted "unbounded queue"
    """
    with mistakes_told(), ExitStack() as stack:
        if planted_bug:
            bug = next((mutant for mutant in MUTANTS if mutant.name == planted_bug), None)
            if bug is None:
                names = ", ".join(mutant.name for mutant in MUTANTS)
                refuse(f"no bug {planted_bug!r} can be planted; these can: {names}")
            stack.enter_context(planted(bug))
        shrinker = Shrinker(
            _plan(seed, mode, scenario),
            on_progress=lambda runs, plan: tell(f"{runs} runs, {size_of(plan)} things happen"),
            max_runs=max_runs,
        )
        if not shrinker.signs:
            refuse(f"{seed} doesn't fail, so there is nothing to shrink")
        smallest = shrinker.shrink()
        out.write_text(smallest.as_json(), encoding="utf-8")
    say(
        f"fails by {', '.join(sorted(shrinker.signs))} with {len(smallest.callers)} callers and"
        f" {len(smallest.injections)} injections after {shrinker.runs} runs"
    )
    say(f"orchestrator chaos replay {out}")


def _plan(seed: str, mode: Mode, scenario: str) -> Plan:
    if seed.isdecimal():
        found = find_scenario(scenario) if scenario else None
        return Settings(mode=mode.value, scenario=found).plan(int(seed))
    try:
        return plan_from_json(Path(seed).read_text(encoding="utf-8"))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{seed}: no seed, and not the file of a plan: {error}") from error


@app.command()
def selftest(
    *,
    limit: Annotated[int, typer.Option(min=1, help="Seeds for each planted bug.")] = 200,
    jobs: Jobs = 1,
    only: Annotated[str, typer.Option(help="Bugs whose name has that text.")] = "",
) -> None:
    """Plants every known bug and fails if one survives its seeds.

    [bold]Examples[/bold]

      orchestrator chaos selftest --jobs 2
    """
    arguments = ["--selftest", "--limit", str(limit), "--jobs", str(jobs), "--only", only]
    with mistakes_told():
        code = shell.main(arguments)
    leave(code)
