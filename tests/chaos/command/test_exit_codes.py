"""What a command's exit code says where it isn't a verdict."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.chaos.command import live, simulated
from orchestrator.chaos.command.commands import app
from orchestrator.errors import ConfigError


def raising(error: BaseException) -> object:
    def does(*_: object) -> None:
        raise error

    return does


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("no gateway answers"), 2, "no gateway answers\n"),
        (FileNotFoundError(2, "No such file or directory", "x.ndjson"), 2, "x.ndjson: No such"),
        (ValueError("a fault of ours"), 70, "ValueError: a fault of ours"),
        (ConnectionResetError(104, "Connection reset by peer"), 70, "ConnectionResetError"),
        (KeyboardInterrupt(), 130, "interrupted; everything was undone\n"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("command", ["live", "sim", "replay", "selftest"])
def test_what_went_wrong_is_never_taken_for_a_violation(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    error: BaseException,
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "run_live", raising(error))
    monkeypatch.setattr(simulated.shell, "main", raising(error))
    words = {"live": ["stalls"], "replay": ["1"]}.get(command, [])

    shown = CliRunner().invoke(app, [command, *words])

    assert shown.exit_code == code
    assert told in shown.stderr
