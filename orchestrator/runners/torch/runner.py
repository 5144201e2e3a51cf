"""Runners of a local model: all slots of a deployment share one model host.

The host is started by the first slot that needs it and started anew by the first one that starts
after its death. The runners die with it, all of the same error, so that one crash is one fault.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from orchestrator import metrics
from orchestrator.errors import (
    ContextLengthExceededError,
    GenerationFailedError,
    InvalidRequestError,
    RequestTooLargeError,
    WorkerError,
    WorkerHungError,
    WorkerStartError,
    describe,
)
from orchestrator.events import Finished, TokenChunk
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.torch.checks import may_exceed, to_wire
from orchestrator.runners.torch.forms import Form, form_of
from orchestrator.runners.torch.life import resident_bytes
from orchestrator.runners.torch.process import HOST_PROGRAM, HostProcess
from orchestrator.runners.torch.seams import called_before, kin, seed_at, seed_of, sent_before
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.spare import Spare
from orchestrator.runners.torch.streams import HostStream
from orchestrator.runners.torch.telling import Telling, rest_of
from orchestrator.runners.torch.tools import NO_TOOLS, place_of_tools, tools_of
from orchestrator.runners.torch.wire import (
    Admit,
    Completed,
    Count,
    Counted,
    Encoded,
    Prefilled,
    Produced,
    Ready,
    Refused,
    Turn,
    WireError,
)
from orchestrator.runners.torch.wishes import wishes_of

COUNT_SECONDS = 5.0
"""How long an exact count of a prompt is waited for; the host checks every prompt again."""

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]


class ModelHost:
    """The one host of a deployment, through all its lives.

    Args:
        settings: What it loads.
        on_progress: Gets a line for each stage of loading, from the loop.
        program: Command line of the host's program.
    """

    def __init__(
        self,
        settings: TorchSettings,
        *,
        on_progress: Progress,
        program: Sequence[str] = HOST_PROGRAM,
    ) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self._program = program
        self._process: HostProcess | None = None
        self._spare = Spare(settings.model, self._spawn_spare, self._count_loss)
        self._starting: asyncio.Task[HostProcess | WorkerStartError] | None = None
        self._closed = False
        self.facts: Ready | None = None
        """What is known of the model, from the first time that it was ready."""
        if settings.deployment:
            metrics.for_deployment(settings.deployment).observe_hosts(
                serving=lambda: float(sum(map(resident_bytes, self.pids))),
                spare=lambda: float(sum(map(resident_bytes, self.spare_pids))),
            )

    def __repr__(self) -> str:
        return f"<ModelHost {self._settings.model}, {self._process or 'not started'}>"

    @property
    def process(self) -> HostProcess | None:
        """The process that can be asked now, None before the start and after a death."""
        if self._process is None or self._starting is not None or not self._process.alive:
            return None
        return self._process

    @property
    def pids(self) -> Sequence[int]:
        """Of the process that can be asked now, if there is one."""
        return () if self.process is None else (self.process.pid,)

    @property
    def spare_pids(self) -> Sequence[int]:
        """Of the process that waits to take its place, if there is one."""
        return () if self._spare.process is None else (self._spare.process.pid,)

    async def ensure(self) -> HostProcess:
        """Returns the running host; starts one, once for all that wait, if there is none.

        Raises:
            WorkerStartError: It can't be started; all that wait get the same error.
        """
        if self._closed:
            raise WorkerStartError(f"the host of {self._settings.model!r} is shut down")
        if self._starting is None:
            if (process := self.process) is not None:
                return process
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._started)
        # a slot that gives up waiting doesn't take the start from the others
        result = await asyncio.shield(self._starting)
        if isinstance(result, WorkerStartError):
            raise result
        return result

    async def aclose(self) -> None:
        """Ends the host for good, within 7 s."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        closing = [self._spare.aclose()]
        if self._process is not None:
            closing.append(self._process.aclose())
        await asyncio.gather(*closing)

    async def _start(self) -> HostProcess | WorkerStartError:
        """Returns the error as a value: it is told even if every waiting slot has gone."""
        begin = asyncio.get_running_loop().time()
        if self._process is not None:
            await self._process.reaped()  # two models at once may be more than the memory holds
        try:
            process = await self._woken() or await self._begun(self._spawn(spare=False))
        except WorkerStartError as error:
            return error
        seconds = asyncio.get_running_loop().time() - begin
        logger.info("%s is ready after %.1f s: %s", self._settings.model, seconds, self.facts)
        if self._settings.spare:
            self._spare.keep()  # not before: it would take the processor from the load
        return process

    async def _woken(self) -> HostProcess | None:
        """Lets the spare load; None if there is none, or none that can be woken.

        Raises:
            WorkerStartError: It was woken, and the model can't be loaded.
        """
        spare = self._spare.take()
        if spare is None:
            return None
        spare.load()
        try:
            return await self._begun(spare)
        except WorkerStartError as error:
            if not spare.waking:
                raise
            self._count_loss()
            logger.warning(
                "the spare host of %s can't be woken, another one is started: %s",
                self._settings.model,
                describe(error),
            )
            return None

    async def _begun(self, process: HostProcess) -> HostProcess:
        self._process = process
        self.facts = await process.ready()
        return process

    def _spawn(self, *, spare: bool) -> HostProcess:
        return HostProcess.spawn(
            self._settings, on_progress=self._on_progress, program=self._program, spare=spare
        )

    def _spawn_spare(self) -> HostProcess:
        return self._spawn(spare=True)

    def _count_loss(self) -> None:
        if self._settings.deployment:
            metrics.for_deployment(self._settings.deployment).spare_lost()

    def _started(self, _task: asyncio.Task[HostProcess | WorkerStartError]) -> None:
        self._starting = None


class TorchRunner:
    """One slot's access to the model host.

    Args:
        host: Shared with the other slots.
        chance: Draws the seeds of requests that name none.
    """

    def __init__(self, host: ModelHost, chance: random.Random) -> None:
        self._host = host
        self._chance = chance
        self._process: HostProcess | None = None

    def __repr__(self) -> str:
        return f"<TorchRunner on {self._process or 'no host'}>"

    @property
    def abilities(self) -> Abilities:
        """Its steps run on this machine, and answers can be gone on with."""
        return Abilities(local=True, resumable=True)

    @property
    def process(self) -> HostProcess | None:
        """The host's process that this runner was started on, dead or alive; None before."""
        return self._process

    async def start(self) -> None:
        """Waits for the model to be loaded.

        Raises:
            WorkerStartError: It can't be.
        """
        self._process = await self._host.ensure()

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Streams the answer; see `Runner.generate`.

        Temperature is 1.0 where the request names none, and the longest answer 1024 tokens.

        Raises:
            InvalidRequestError: The model or its chat template can't serve the request.
            ContextLengthExceededError: Prompt and answer are longer than the model's context.
            RequestTooLargeError: The messages don't fit into one frame.
            GenerationFailedError: The model failed on this request.
            WorkerCrashedError: The host died.
        """
        process = self._started_process()
        first = Step.FIRST_TOKEN if process.stepped else Step.FIRST_STEP
        lease.arm(first, silent_for=process.silence)
        seed = seed_of(request, self._chance)
        try:
            with self._admit(process, request, seed) as stream:
                answers = {
                    number: Telling(at, seed, called_before(request, at))
                    for at, number in enumerate(stream.numbers)
                }
                left = len(answers)
                while left:
                    events = await stream.receive()
                    if lease.step is Step.FIRST_STEP:
                        lease.arm(Step.FIRST_TOKEN)
                    for event in events:
                        lease.progress()
                        match event:
                            case Produced():
                                if lease.step is Step.FIRST_TOKEN:
                                    lease.arm(Step.NEXT_TOKEN)
                                if (chunk := answers[event.stream].piece(event)) is not None:
                                    yield chunk
                            case Completed():
                                answers[event.stream].end = event
                                left -= 1
                            case Refused():
                                _refuse(event)
                            case Prefilled() | Counted() | Encoded():
                                pass
            lease.disarm()
            for item in rest_of(answers.values()):
                yield item
        finally:
            lease.disarm()

    async def closed(self) -> BaseException:
        """Returns the error that ended the host; see `Runner.closed`."""
        return await self._started_process().closed()

    def hung(self, cause: WorkerHungError) -> None:
        """Kills the host, all its streams fail of the cause; see `Runner.hung`."""
        if self._process is not None:
            self._process.kill("a step missed its lease", cause)

    async def aclose(self) -> None:
        """Lets go of the host, which the deployment's factory closes."""
        self._process = None

    def _admit(self, process: HostProcess, request: PriorityRequest, seed: int) -> HostStream:
        messages, tools, wishes = to_wire(request), tools_of(request), wishes_of(request.extra)

        def begin(index: int) -> Callable[[int], Admit]:
            noise, sent = seed_at(seed, index), sent_before(request, index)
            return lambda number: Admit(
                number, messages, request.sampling, noise, sent, wishes, tools
            )

        try:
            stream = process.open(begin(0))
        except WireError as error:
            raise RequestTooLargeError(f"messages: {error}", param="messages") from error
        for index in range(1, request.sampling.n):
            process.open(begin(index), stream)
        return stream

    def _started_process(self) -> HostProcess:
        if self._process is None:
            raise WorkerError("this runner isn't started")
        return self._process


def _refuse(event: Refused) -> NoReturn:
    match event.kind:
        case "context":
            raise ContextLengthExceededError(event.message, param=event.param)
        case "invalid":
            raise InvalidRequestError(event.message, param=event.param)
        case "failed":
            raise GenerationFailedError(event.message)


@dataclass(frozen=True, slots=True)
class Inspector:
    """Checks requests of one deployment before they are queued.

    Args:
        host: Counts long prompts, if it is there to be asked.
    """

    host: ModelHost

    def inspect(self, request: PriorityRequest) -> Awaitable[None] | None:
        """See `SlotFactory.inspect`.

        Raises:
            InvalidRequestError: The model can't do what a field asks.
            ContextLengthExceededError: The prompt is longer than the model's context.
        """
        messages, tools = to_wire(request), tools_of(request)
        facts, form = self.host.facts, form_of(request.extra)
        if facts is None:
            return None
        longest = request.sampling.max_tokens
        place = place_of_tools(messages, tools)
        if place is not None and facts.tools is None:
            raise InvalidRequestError(f"{place}: {NO_TOOLS}", param=place)
        if not may_exceed(messages, longest, facts) and form is None and place is None:
            return None
        return self._check(messages, tools, longest, form)

    async def count(self, request: PriorityRequest) -> int | None:
        """See `SlotFactory.count`.

        Raises:
            InvalidRequestError: The model can't do what a field asks.
        """
        return await self._count(to_wire(request), tools_of(request), None)

    async def _check(
        self, messages: list[Turn], tools: list[Turn], max_tokens: int | None, form: Form | None
    ) -> None:
        await self._count(messages, tools, max_tokens, form)

    async def _count(
        self,
        messages: list[Turn],
        tools: list[Turn],
        max_tokens: int | None,
        form: Form | None = None,
    ) -> int | None:
        process = self.host.process
        if process is None:
            return None  # the host checks again before it begins
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                with process.open(
                    lambda number: Count(number, messages, max_tokens, form, tools)
                ) as stream:
                    while not (events := await stream.receive()):
                        pass  # it was told that others' first step is done
                    (event,) = events
        except (TimeoutError, WorkerError):
            return None
        if isinstance(event, Refused):
            _refuse(event)
        return event.prompt_tokens if isinstance(event, Counted) else None


def factory(
    settings: TorchSettings,
    *,
    on_progress: Progress,
    chance: random.Random | None = None,
    program: Sequence[str] = HOST_PROGRAM,
) -> SlotFactory:
    """Returns what makes the slots of a deployment with this model; nothing is started yet.

    Args:
        settings: The model and how it is loaded.
        on_progress: Gets a line for each stage of loading, from the loop.
        chance: Draws the seeds of requests that name none; the system's own by default.
        program: Command line of the model host's program.
    """
    host = ModelHost(settings, on_progress=on_progress, program=program)
    seeds = chance or random.SystemRandom()

    async def find(_request: PriorityRequest) -> str:
        # the hub's own library takes a while to load and nobody but a check wants it
        from orchestrator.runners.torch import find  # noqa: PLC0415

        return await find.find(settings)

    inspector = Inspector(host)
    return SlotFactory(
        create=lambda: TorchRunner(host, seeds),
        model=settings.model,
        resumes=kin(settings),
        inspect=inspector.inspect,
        count=inspector.count,
        find=find,
        aclose=host.aclose,
        processes=lambda: host.pids,
        spares=lambda: host.spare_pids,
    )
