"""What a live run is told, and the command that tells it so again."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.chaos.scenario.sections import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a live run is told."""

    scenario: Scenario
    folder: Path
    """Where journal and log go; made if it isn't there."""
    named: str = ""
    """How the scenario was named, if not by its own name: by a file's path."""
    config: Path | None = None
    """The user's own configuration; None builds the scenario's system of stubs."""
    stubs: bool = False
    """Whether stubs take the place of all models and providers of the configuration."""
    route: str = ""
    """The model to ask for; empty for the configuration's first."""
    attach: str = ""
    """Base URL of a gateway that runs; empty starts one."""
    state_dir: Path | None = None
    """The folder of that gateway's socket."""
    sure: bool = False
    """Whether a target that isn't on this machine is meant."""
    dry: bool = False
    """Whether to stop when all is known that would be broken."""
    planted: str = ""
    slower: float = 1.0
    """How many times as slow the scenario has been made."""
    tell: Callable[[str], None] = lambda _: None
    """Told of the progress, a line at a time."""


def again(options: Options) -> str:
    """The command that runs it once more."""
    words = ["orchestrator", "chaos", "live", options.named or options.scenario.name]
    for flag, value in (
        ("--config", options.config),
        ("--route", options.route),
        ("--target", options.attach),
        ("--state-dir", options.state_dir),
        ("--planted", options.planted),
        ("--slower", f"{options.slower:g}" if options.slower != 1 else ""),
    ):
        words += [flag, str(value)] if value else []
    words += ["--stubs"] if options.stubs else []
    words += ["--yes"] if options.sure else []
    return shlex.join(words)
