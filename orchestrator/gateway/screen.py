"""What is printed: progress as plain lines, one table and one curl line; findings as a table."""

import shlex
from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Column, Table

from orchestrator.connect import STEPS, Finding
from orchestrator.deployment import DeploymentHealth

FILE_WIDTH = 160
"""Columns for a table that goes to a file or a pipe."""


def plain_console() -> Console:
    """Standard output, without rich's reading of what is printed."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def folding_table(*columns: str) -> Table:
    """A table that shows every cell whole."""
    return Table(*(Column(column, overflow="fold") for column in columns))


class Screen:
    """Standard output while the gateway starts and stops.

    Args:
        clock: Seconds; its value now is when the start began.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._console = plain_console()
        self._clock = clock
        self._began_at = clock()

    def line(self, text: str) -> None:
        """Prints a line with the seconds since the start."""
        self._say(f"[{self._clock() - self._began_at:6.1f} s] {text}")

    def progress(self, deployment: str, doing: str) -> None:
        """Prints what a deployment does; see `plan.OnProgress`."""
        self.line(f"{deployment}: {doing}")

    def summary(
        self, url: str, routes: Mapping[str, Sequence[str]], healths: Sequence[DeploymentHealth]
    ) -> None:
        """Prints what serves, what doesn't and why, and how to ask."""
        table = folding_table("route", "deployment", "state", "slots", "model")
        by_name = {health.name: health for health in healths}
        for route, names in routes.items():
            for place, name in enumerate(names):
                health = by_name[name]
                table.add_row(
                    route if place == 0 else "",
                    name,
                    "ready" if health.ready else health.state,
                    f"{health.live_slots}/{health.slots}",
                    health.model,
                )
        self._console.print(table)
        for health in healths:
            if health.reason is not None:
                self.line(f"{health.name} is {health.state}: {health.reason}")
        ready = [health.name for health in healths if health.ready]
        self.line(f"{len(ready)} of {len(healths)} deployments ready, listening on {url}")
        first = next((name for name, names in routes.items() if set(names) & set(ready)), None)
        if first is not None:
            self._say(f"\n{curl_line(url, first)}\n")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Prints what `orchestrator check --connect` has found.

    Args:
        findings: One a deployment.
        as_json: As one JSON array, for programs.
    """
    console = plain_console()
    if as_json:
        line = msgspec.json.encode([_plain_finding(finding) for finding in findings]).decode()
        console.print(line, soft_wrap=True)
        return
    table = folding_table("deployment", "model", *STEPS)
    for finding in findings:
        words = [_word(finding.steps[step]) for step in STEPS]
        if finding.first_token is not None:
            words[-1] = f"{finding.first_token * 1000:.0f} ms"
        table.add_row(finding.deployment, finding.model, *words)
    console.print(table)
    for finding in findings:
        if finding.error is not None:
            text = " ".join(finding.error.message.split())
            line = f"{finding.deployment}: {finding.failed}: {text}; {finding.advice}"
            console.print(line, soft_wrap=True)


def _word(passed: bool | None) -> str:  # noqa: FBT001 - one value, and it is the question
    return "-" if passed is None else "ok" if passed else "FAILED"


def _plain_finding(finding: Finding) -> dict[str, object]:
    error = finding.error
    return {
        "deployment": finding.deployment,
        "model": finding.model,
        "local": finding.local,
        "ok": finding.ok,
        "steps": {step.replace(" ", "_"): passed for step, passed in finding.steps.items()},
        "first_token_seconds": finding.first_token,
        "failed": finding.failed and finding.failed.replace(" ", "_"),
        "error": error and {"code": error.code, "message": error.message},
        "advice": finding.advice,
    }


def curl_line(url: str, model: str) -> str:
    """A command that asks and shows the stream."""
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d {data}"
