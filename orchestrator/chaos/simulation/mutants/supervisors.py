"""Bugs of the supervisor."""

import asyncio

from typing_extensions import override

from orchestrator.actors.messages import StartSlot, SupervisorMessage
from orchestrator.actors.supervisor import Supervisor


class LosesASlot(Supervisor):
    """A dead worker isn't followed by another."""

    @override
    def _later(self, delay: float, message: SupervisorMessage) -> None:
        if not isinstance(message, StartSlot):
            super()._later(delay, message)


class RestartsForEver(Supervisor):
    """No number of deaths is too many."""

    @override
    def _is_new(self, root: BaseException, slot: int) -> bool:
        return False


class HearsTheOld(Supervisor):
    """Timers of an older generation count."""

    @override
    def _later(self, delay: float, message: SupervisorMessage) -> None:
        def due() -> None:
            self._timers.discard(timer)
            if isinstance(message, StartSlot):
                self._hear(StartSlot(message.slot, self._inflight.generation))
            else:
                self._hear(message)

        timer = asyncio.get_running_loop().call_later(delay, due)
        self._timers.add(timer)
