"""What `orchestrator serve` prints: progress as plain lines, then one table and one curl line."""

import shlex
from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Column, Table

from orchestrator.wiring import DeploymentHealth

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
        """Prints what a deployment does; see `wiring.OnProgress`."""
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


def curl_line(url: str, model: str) -> str:
    """A command that asks and shows the stream."""
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d {data}"
