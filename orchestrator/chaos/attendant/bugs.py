"""Bugs that can be planted in a running gateway, so that a scenario proves that it finds them.

`orchestrator chaos live --planted NAME` is the one switch. Each takes the place of sound code while
that gateway runs; the code itself knows nothing of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from typing_extensions import override

from orchestrator.actors.supervisor import Supervisor
from orchestrator.channel import Channel
from orchestrator.chaos.simulation.mutants.planting import Mutant, grafted, instead_of
from orchestrator.chaos.simulation.mutants.supervisors import LosesASlot
from orchestrator.deployment import DeploymentHealth, RunningDeployment
from orchestrator.errors import ConfigError, WorkerError
from orchestrator.events import Ending, Failed, Finished, FinishReason, TokenChunk

DOUBLED = 2
"""The token, from 0, that the reader gets twice."""

# what a graft takes the place of can't be reached through `super()`
_end, _send, _suspend = Channel.end, Channel.send, Channel.suspend


class SwallowsACrash(Channel):
    """A worker's death in mid-stream is told as a normal end."""

    @override
    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        if isinstance(ending, Failed) and isinstance(ending.error, WorkerError) and self.delivered:
            ending = Finished(FinishReason.STOP, None)
        return _end(self, ending, epoch)

    @override
    def suspend(self) -> Sequence[TokenChunk]:
        chunks = _suspend(self)
        _end(self, Finished(FinishReason.STOP, None))
        return chunks


class DoublesAToken(Channel):
    """One token of every answer comes twice."""

    @override
    def send(self, chunk: TokenChunk, epoch: int) -> bool:
        if self.delivered + len(self._chunks) == DOUBLED:
            _send(self, chunk, epoch)
        return _send(self, chunk, epoch)


class SaysThatAllIsWell(RunningDeployment):
    """Tells the health page what one likes to hear."""

    @override
    def health(self) -> DeploymentHealth:
        health = super().health()
        return replace(health, state="serving", ready=True, live_slots=health.slots)


LIVE_BUGS: Mapping[str, Mutant] = MappingProxyType(
    {
        "swallow-a-crash": Mutant("swallow a crash", "rakka", grafted([SwallowsACrash])),
        "double-a-token": Mutant("double a token", "LiteLLM", grafted([DoublesAToken])),
        "lie-in-readyz": Mutant(
            "lie in readyz",
            "vLLM, issue 39863",
            instead_of(RunningDeployment, SaysThatAllIsWell),
        ),
        "leak-a-slot": Mutant("leak a slot", "rakka", instead_of(Supervisor, LosesASlot)),
    }
)
"""By the name that the command line takes."""


def bugs_named(names: str) -> list[Mutant]:
    """The bugs of a list with commas; none of an empty one.

    Raises:
        ConfigError: One of them can't be planted.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in LIVE_BUGS:
            known = ", ".join(LIVE_BUGS)
            raise ConfigError(f"no bug {name!r} can be planted; these can: {known}")
    return [LIVE_BUGS[name] for name in wanted]
