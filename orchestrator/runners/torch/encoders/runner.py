"""Runners of a local model that reads texts: all slots of a deployment share one model host.

The host lives, dies and is started anew as the one of a chat model does; see
`runners.torch.runner`.
"""

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from orchestrator.errors import (
    ContextLengthExceededError,
    GenerationFailedError,
    InvalidRequestError,
    RequestTooLargeError,
    WorkerError,
    WorkerHungError,
)
from orchestrator.events import Finished, TokenChunk, Usage
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.torch.encoders.checks import to_wire
from orchestrator.runners.torch.encoders.results import Results, text_of
from orchestrator.runners.torch.encoders.room import Room
from orchestrator.runners.torch.process import HostProcess
from orchestrator.runners.torch.runner import ModelHost, Progress
from orchestrator.runners.torch.settings import Task, TorchSettings
from orchestrator.runners.torch.streams import HostStream
from orchestrator.runners.torch.wire import (
    Completed,
    Counted,
    Encode,
    Encoded,
    Prefilled,
    Produced,
    Refused,
    WireError,
)

ENCODER_PROGRAM = (sys.executable, "-P", "-m", "orchestrator.runners.torch.encoders.host")
WORKS: Mapping[Task, Work] = {
    "embedding": Work.EMBED,
    "rerank": Work.RERANK,
    "classify": Work.CLASSIFY,
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the slots of one deployment share."""

    host: ModelHost
    room: Room

    def inspect(self, request: PriorityRequest) -> None:
        """See `SlotFactory.inspect`.

        Raises:
            InvalidRequestError: The model can't do what a field asks.
            RequestTooLargeError: It has more texts or tokens than the host may ever hold.
        """
        self.encode(request)
        self.room.check(len(request.messages), request.estimated_prompt_tokens)

    def encode(self, request: PriorityRequest) -> Encode:
        """Returns what the host is told.

        Raises:
            InvalidRequestError: The model can't do what a field asks.
        """
        facts = self.host.facts
        return to_wire(request, 0 if facts is None else facts.dimensions)


class EncoderRunner:
    """One slot's access to the model host.

    Args:
        shared: With the other slots.
    """

    def __init__(self, shared: Deployment) -> None:
        self._shared = shared
        self._process: HostProcess | None = None

    def __repr__(self) -> str:
        return f"<EncoderRunner on {self._process or 'no host'}>"

    @property
    def abilities(self) -> Abilities:
        """Its steps run on this machine."""
        return Abilities(local=True)

    @property
    def process(self) -> HostProcess | None:
        """The host's process that this runner was started on, dead or alive; None before."""
        return self._process

    async def start(self) -> None:
        """Waits for the model to be loaded.

        Raises:
            WorkerStartError: It can't be.
        """
        self._process = await self._shared.host.ensure()

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Reads all texts, then gives one chunk with the list; see `Runner.generate`.

        Raises:
            InvalidRequestError: The model can't do what a field asks.
            ContextLengthExceededError: A text is longer than the model reads.
            RequestTooLargeError: The texts don't fit into one frame.
            QueueFullError: The host holds too much already.
            GenerationFailedError: The model failed on one of the texts.
            WorkerCrashedError: The host died.
        """
        process = self._started_process()
        asked = self._shared.encode(request)
        results = Results(len(asked.texts))
        first = Step.FIRST_TOKEN if process.stepped else Step.FIRST_STEP
        lease.arm(first, silent_for=process.silence)
        room = self._shared.room.taken(len(asked.texts), request.estimated_prompt_tokens)
        try:
            with room, _open(process, asked) as stream:
                while True:
                    events = await stream.receive()
                    if lease.step is Step.FIRST_STEP:
                        lease.arm(Step.FIRST_TOKEN)
                    for event in events:
                        lease.progress()
                        match event:
                            case Encoded():
                                results.take(event)
                            case Completed(prompt_tokens=tokens, finish_reason=reason):
                                lease.disarm()
                                yield TokenChunk(text_of(request, results.all()), 0)
                                usage = Usage(prompt_tokens=tokens, completion_tokens=0)
                                yield Finished(reason, usage)
                                return
                            case Refused():
                                _refuse(event)
                            case Prefilled() | Produced() | Counted():
                                pass  # a sign of life while others' texts are read
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

    def _started_process(self) -> HostProcess:
        if self._process is None:
            raise WorkerError("this runner isn't started")
        return self._process


def _open(process: HostProcess, asked: Encode) -> HostStream:
    try:
        return process.open(lambda number: msgspec.structs.replace(asked, stream=number))
    except WireError as error:
        raise RequestTooLargeError(f"input: {error}", param="input") from error


def _refuse(event: Refused) -> NoReturn:
    match event.kind:
        case "context":
            raise ContextLengthExceededError(event.message, param=event.param)
        case "invalid":
            raise InvalidRequestError(event.message, param=event.param)
        case "failed":
            raise GenerationFailedError(event.message)


def factory(
    settings: TorchSettings,
    *,
    on_progress: Progress,
    room: Room,
    program: Sequence[str] = ENCODER_PROGRAM,
) -> SlotFactory:
    """Returns what makes the slots of a deployment with this model; nothing is started yet.

    Args:
        settings: The model, how it is loaded and what for.
        on_progress: Gets a line for each stage of loading, from the loop.
        room: What the host may hold.
        program: Command line of the model host's program.

    Raises:
        WorkerError: The settings don't say what the model is for.
    """
    if settings.encoder is None:
        raise WorkerError(f"it isn't said what the model {settings.model!r} is for")
    host = ModelHost(settings, on_progress=on_progress, program=program)

    async def find(_request: PriorityRequest) -> str:
        # the hub's own library takes a while to load and nobody but a check wants it
        from orchestrator.runners.torch import find  # noqa: PLC0415

        return await find.find(settings)

    shared = Deployment(host, room)
    return SlotFactory(
        create=lambda: EncoderRunner(shared),
        model=settings.model,
        works=frozenset({WORKS[settings.encoder.task]}),
        inspect=shared.inspect,
        find=find,
        aclose=host.aclose,
        processes=lambda: host.pids,
        spares=lambda: host.spare_pids,
    )
