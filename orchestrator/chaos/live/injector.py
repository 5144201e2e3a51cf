"""Strikes with every fault of a scenario at its time, and heals all of it again."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress

from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.crowd import MANNERS, Crowd
from orchestrator.chaos.live.guardian import Guardian
from orchestrator.chaos.live.hand import Hand
from orchestrator.chaos.live.moments import Moments
from orchestrator.chaos.live.reloading import reload
from orchestrator.chaos.live.starving import starved
from orchestrator.chaos.live.target import END_SECONDS, Target
from orchestrator.chaos.processes import ProcessId
from orchestrator.chaos.provider.front import Front
from orchestrator.chaos.provider.toxics import Active, Harm, Toxic
from orchestrator.chaos.scenario.sections import ANY, Fault, Scenario
from orchestrator.errors import ConfigError

LATE_SHARE = 0.8
"""A block whose answer came after this share of its time has landed."""


class Injector:
    """All faults of one run.

    Args:
        scenario: Which, and when.
        target: The gateway.
        hand: For those of workers.
        guardian: Told of the undos of what is done to the gateway's process.
        fronts: The place of each provider, by deployment.
        crowd: Those who ask.
        moments: When each begins.
        journal: Told what was planned, landed and healed.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        target: Target,
        hand: Hand,
        guardian: Guardian,
        fronts: Mapping[str, Front],
        crowd: Crowd,
        moments: Moments,
        journal: Journal,
    ) -> None:
        self._scenario = scenario
        self._target = target
        self._hand = hand
        self._guardian = guardian
        self._reloads = 0
        self._fronts = fronts
        self._crowd = crowd
        self._journal = journal
        self._numbers: dict[Active, int] = {}
        self._moments = moments

    def __repr__(self) -> str:
        return f"<Injector, {len(self._scenario.faults)} faults>"

    def plan(self) -> None:
        """Writes down all that will be done."""
        for number, fault in enumerate(self._scenario.faults):
            self._journal.record(
                Kind.FAULT_PLANNED,
                fault=number,
                what=f"{fault.target} {fault.do}",
                target=fault.whom,
                at=fault.at,
            )

    async def run(self) -> None:
        """Strikes with all of them; returns when the last one is over."""
        async with asyncio.TaskGroup() as group:
            for number, fault in enumerate(self._scenario.faults):
                group.create_task(self._strikes(number, fault))

    def heal(self) -> None:
        """Undoes what may still be done."""
        for front in self._fronts.values():
            front.toxics.reset()
        self._hand.heal()

    def provider_landed(self, active: Active, request: str | None) -> None:
        """A toxic struck a request; what strikes at no one's command is left out."""
        number = self._numbers.get(active)
        if number is not None:
            self._landed(number, evidence="counted at the provider's place", request=request)

    async def _strikes(self, number: int, fault: Fault) -> None:
        # a moment that hasn't come by the time at which nobody asks any more doesn't come
        patience = max(self._scenario.load.for_, fault.at) + self._scenario.system.deadline
        end = asyncio.get_running_loop().time() + patience
        for time in range(fault.times):
            if time and fault.every is not None:
                await asyncio.sleep(fault.every)
            whom = await self._whom(fault, end, first=time == 0)
            if not whom:
                break
            await self._strike(number, fault.model_copy(update={fault.target: whom}))
        self._journal.record(Kind.FAULT_HEALED, fault=number)

    async def _whom(self, fault: Fault, end: float, *, first: bool) -> str:
        """Waits for the moment and returns whom it meets; empty if it doesn't come."""
        with suppress(TimeoutError, ConfigError):  # what could not be done has not landed
            async with asyncio.timeout_at(end):
                if first:
                    await self._moments.begin(fault)
                return await self._moments.come(fault)
        return ""

    async def _strike(self, number: int, fault: Fault) -> None:
        match fault.target:
            case "worker":
                await self._hand.strike(fault, self._noting(number))
            case "provider":
                await self._poison_provider(number, fault)
            case "client":
                await self._client(number, fault)
            case _:
                await self._gateway(number, fault)

    def _noting(self, number: int) -> Callable[[str, str], None]:
        def landed(deployment: str, evidence: str) -> None:
            self._landed(number, evidence=evidence, deployment=deployment)

        return landed

    def _landed(
        self, number: int, *, evidence: str, deployment: str = "", request: str | None = None
    ) -> None:
        more = {"deployment": deployment} if deployment else {}
        self._journal.record(
            Kind.FAULT_LANDED, request=request, fault=number, evidence=evidence, more=more
        )

    async def _poison_provider(self, number: int, fault: Fault) -> None:
        toxic = toxic_of(fault)
        put: list[tuple[Front, Active]] = []
        for name, front in self._fronts.items():
            if fault.whom in (ANY, name):
                active = front.toxics.put_on(toxic)
                self._numbers[active] = number
                put.append((front, active))
        try:
            await asyncio.sleep(fault.for_)
        finally:
            for front, active in put:
                front.toxics.take_off(active.number)

    async def _client(self, number: int, fault: Fault) -> None:
        if fault.do not in MANNERS:
            self._crowd.burst(number, fault)
            return
        leave = self._crowd.behave(number, fault)
        try:
            await asyncio.sleep(fault.for_)
        finally:
            leave()

    async def _gateway(self, number: int, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        asked, target = loop.time(), self._target
        with suppress(ConfigError):  # what could not be done has not landed
            match fault.do:
                case "block":
                    await target.inside.do("block", seconds=fault.seconds)
                    if loop.time() - asked >= LATE_SHARE * fault.seconds:
                        self._landed(number, evidence=f"no answer for {loop.time() - asked:.2f} s")
                case "sigterm":
                    if target.process is not None:
                        target.process.send_signal(signal.SIGTERM)
                        await target.wait(END_SECONDS)
                        self._landed(number, evidence=f"it ended with {target.ended_with}")
                case "reload":
                    self._reloads += 1
                    if await reload(target, self._journal, self._reloads):
                        self._landed(number, evidence="the new deployments serve")
                case "fd_exhaust":
                    state = await target.state()
                    process = ProcessId(state.pid, state.started)
                    async with aclosing(
                        starved(process, target.address, self._guardian, fault)
                    ) as told:
                        async for evidence in told:
                            self._landed(number, evidence=evidence)
                case _:
                    await self._from_within(number, fault)

    async def _from_within(self, number: int, fault: Fault) -> None:
        command = fault.do.replace("_", "-")
        for deployment in (await self._target.state()).deployments:
            if fault.whom in (ANY, deployment.name):
                await self._target.inside.do(command, deployment=deployment.name)
                self._landed(number, evidence="the gateway said so", deployment=deployment.name)


def toxic_of(fault: Fault) -> Toxic:
    """What a provider does, from a scenario's fault."""
    return Toxic(
        harm=Harm(fault.do),
        toxicity=fault.toxicity,
        after_tokens=fault.after_tokens,
        how=fault.how,
        where=fault.where,
        code=fault.code,
        error=fault.error,
        retry_after=fault.retry_after,
        seconds=fault.seconds,
        jitter=fault.jitter,
        size=fault.size,
    )
