"""The moment at which a fault of a live run begins: a time, a number of requests, a passage.

What is seen from here has passed already, so a fault comes just after its moment: by about a
millisecond after a passage, which the gateway tells through its socket, or a token that was read.
"""

import asyncio
from collections.abc import Mapping

from orchestrator.chaos.live.crowd import Crowd
from orchestrator.chaos.live.target import Target
from orchestrator.chaos.scenario.sections import ANY, Fault

LOOK_SECONDS = 0.05


class Moments:
    """Waits for them.

    Args:
        target: The gateway.
        crowd: Those who ask.
        serving: The deployment at which a request runs, by the request's name, as long as it does.
    """

    def __init__(self, target: Target, crowd: Crowd, serving: Mapping[str, str]) -> None:
        self._target = target
        self._crowd = crowd
        self._serving = serving
        self._sent = asyncio.Event()
        crowd.on_sent = self._sent.set

    def __repr__(self) -> str:
        return f"<Moments, {self._crowd.sent} sent>"

    async def begin(self, fault: Fault) -> None:
        """Waits for the time or the number of requests from which on a fault may strike."""
        if fault.after_requests is None:
            await asyncio.sleep(fault.at)
            return
        begun = self._crowd.sent
        while self._crowd.sent - begun < fault.after_requests:
            self._sent.clear()
            await self._sent.wait()

    async def come(self, fault: Fault) -> str:
        """Waits until it is to strike, and returns whom it meets: a deployment, or any.

        Raises:
            ConfigError: The gateway can't be asked any more.
        """
        if fault.at_point is not None:
            names = await self._meant(fault)
            passed = await self._target.inside.passage(fault.at_point, fault.nth, names)
            return passed if fault.target == "worker" else fault.whom
        if fault.target == "worker" and fault.after_tokens:
            return await self._within_an_answer(fault.after_tokens, await self._meant(fault))
        return fault.whom

    async def _meant(self, fault: Fault) -> list[str]:
        """The deployments of which it may meet one; a host that is just starting is waited for."""
        while True:
            names = [
                one.name
                for one in (await self._target.state()).deployments
                if fault.whom in (ANY, one.name) and (one.hosts or fault.target != "worker")
            ]
            if names:
                return names
            await asyncio.sleep(LOOK_SECONDS)

    async def _within_an_answer(self, tokens: int, names: list[str]) -> str:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def look(request: str, read: int) -> None:
            deployment = self._serving.get(request)
            if read >= tokens and deployment in names and not found.done():
                found.set_result(deployment)

        leave = self._crowd.listen(look)
        try:
            return await found
        finally:
            leave()
