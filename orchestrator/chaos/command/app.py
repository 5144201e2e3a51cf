"""The group of commands, what they share, and how their exit codes come about."""

import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import typer

from orchestrator.chaos.journal import JournalError
from orchestrator.chaos.verdict.judgement import Outcome
from orchestrator.errors import ConfigError

RUNS = Path("runs")

app = typer.Typer(
    name="chaos",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Breaks workers, providers and clients on purpose, simulated and live, and judges.

    The verdict is computed from the run's journal alone, and a fault that did not land proves
    nothing. Exit codes: 0 passed, 1 an invariant was violated, 2 wrong usage or scenario, 3 the
    baseline was not met and nothing was injected, 4 inconclusive, 5 something was left on the
    machine, 6 one seed left two traces, 7 an expectation was missed, 70 internal error,
    130 interrupted, after everything was undone.

    [bold]Examples[/bold]

      orchestrator chaos list scenarios

      orchestrator chaos live worker-crash-under-load

      orchestrator chaos live provider-429-storm --config gateway.yaml --stubs

      orchestrator chaos sim --seeds 0:200 --jobs 2
    """,
)


def say(line: str) -> None:
    """Prints a line of the result."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(line: str) -> None:
    """Prints a line of the progress, which is no part of the result."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def folder_for(name: str, out: Path | None) -> Path:
    """A fresh folder for a run: the one that is named, or one named for the time of day.

    Raises:
        ConfigError: It can't be made.
    """
    # a folder's name is for people; nothing is measured by it
    now = datetime.now(UTC)  # noqa: TID251 - wall time is what people look for
    folder = out or RUNS / f"{now:%Y%m%d-%H%M%S}-{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from error
    return folder


@contextmanager
def mistakes_told() -> Generator[None]:
    """Turns what a user got wrong, and what we did, into lines on standard error and an exit code.

    Raises:
        Exit: Something was wrong.
    """
    try:
        yield
    except typer.Exit:
        raise
    except (ConfigError, JournalError) as error:
        tell(str(error))
        raise typer.Exit(Outcome.WRONG_USAGE) from None
    except (FileNotFoundError, PermissionError) as error:
        tell(f"{error.filename}: {error.strerror}")
        raise typer.Exit(Outcome.WRONG_USAGE) from None
    except KeyboardInterrupt:
        tell("interrupted; everything was undone")
        raise typer.Exit(Outcome.INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - outermost frame; 1, Python's code, is a violation
        traceback.print_exception(error)
        raise typer.Exit(Outcome.INTERNAL_ERROR) from None


def leave(code: int) -> None:
    """Ends the command with a code; goes on with 0.

    Raises:
        Exit: The code isn't 0.
    """
    if code:
        raise typer.Exit(code)


def refuse(text: str) -> NoReturn:
    """Says what is wrong with what the user wants.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(text)
