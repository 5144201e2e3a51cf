"""One model host seen from its parent: a child process, its socket and its streams.

Rules:
    1. The host's death is the end of its socket or of its lifeline, whichever comes first; whatever
       it sent before is delivered before.
    2. Every open stream learns of the death once, all with the same error.
    3. It is always reaped; a host that doesn't end is asked, then terminated, then killed.
    4. Nothing but `ready`, `closed`, `reaped`, `aclose` and a stream's `receive` waits.

Made on the event loop's thread, which must outlive it: on Linux the kernel kills the host when the
thread that started it ends (trap C3).
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Self, assert_never

import msgspec

from orchestrator.errors import OrchestratorError, WorkerCrashedError, WorkerStartError
from orchestrator.runners.torch.life import SignsOfLife
from orchestrator.runners.torch.lifeline import exit_of
from orchestrator.runners.torch.report import OutputTail, crash_report
from orchestrator.runners.torch.settings import TorchSettings, memory_limit
from orchestrator.runners.torch.streams import LAST_EVENTS, HostStream
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Command,
    Completed,
    Count,
    Encode,
    Encoded,
    FrameDecoder,
    Load,
    LoadFailed,
    Loading,
    Prefilled,
    Prepare,
    Prepared,
    Produced,
    Ready,
    Report,
    Shutdown,
    Step,
    StreamEvent,
    Warned,
    WireError,
    frame,
    report_decoder,
)

HOST_PROGRAM = (sys.executable, "-P", "-m", "orchestrator.runners.torch.host")
"""-P: a file in the working directory must not stand in for a module of the host."""

ASKED_SECONDS = 1.0
TERMINATED_SECONDS = 1.0
KILLED_SECONDS = 5.0
ENDING_SECONDS = 1.0
"""A host whose socket has ended gets this long to end by itself."""
REAP_INTERVAL = 0.001
REAPED_SECONDS = 0.005
"""A small host is reaped within this time; a large one's streams don't wait for it."""
TICK_SECONDS = 1.0
REPEAT_SECONDS = 10.0
"""A stage that lasts is told again after each so many."""
WAKE_SECONDS = 3.0
"""A spare that is told to load and shows no sign of life for as long isn't worth waiting for."""
RECEIVE_BYTES = 1 << 18

logger = logging.getLogger(__name__)


class HostProcess:
    """A running model host; made by `spawn`.

    Args:
        process: The child; its output is a non-blocking pipe.
        link: The parent's end of the socket, non-blocking.
        lifeline: The reading end of the pipe that ends when the host does.
        settings: What the host loads.
        on_progress: Gets a line for each stage of loading and one each 10 s while it lasts.
        spare: Whether it waits for `load` before it loads anything.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        link: socket.socket,
        lifeline: int,
        settings: TorchSettings,
        on_progress: Callable[[str], None],
        *,
        spare: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._socket = link
        self._lifeline = lifeline
        self._settings = settings
        self._on_progress = on_progress
        self._tail = OutputTail(process.pid)
        self._decoder = FrameDecoder()
        self._outgoing = bytearray()
        self._streams: dict[int, HostStream] = {}
        self._next_stream = 0
        self._steps = 0
        self._owing_since: float | None = None
        self._stage = "starting the process"
        self._stage_at = self._told_at = self._loop.time()
        self._signs = SignsOfLife(process.pid)
        self._silence = 0.0
        self._load_error: str | None = None
        self._reason: str | None = None
        self._cause: BaseException | None = None
        self._closing = False
        self._lost = False
        self._spare = spare
        self._timer: asyncio.TimerHandle | None = None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._death: asyncio.Future[WorkerCrashedError] = self._loop.create_future()
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        self.facts: Ready | None = None
        """What is known of the model, once it is ready."""
        self.prepared = False
        """Whether it is a spare, or was one, that has done all that needs no model."""
        self.waking = False
        """Whether it was a spare and is to load, but hasn't begun to."""
        self.stepped = False
        """Whether the model has taken a step since it was loaded."""

    def __repr__(self) -> str:
        if self._death.done():
            return f"<HostProcess {self.pid} gone>"
        state = self._stage if self.facts is None else f"{len(self._streams)} streams"
        return f"<HostProcess {self.pid}, {state}>"

    @classmethod
    def spawn(
        cls,
        settings: TorchSettings,
        *,
        on_progress: Callable[[str], None],
        program: Sequence[str] = HOST_PROGRAM,
        spare: bool = False,
    ) -> Self:
        """Starts the child and tells it what to load, or what to wait for.

        Raises:
            WorkerStartError: The operating system can't start a process.
        """
        ours, theirs = socket.socketpair()
        lifeline, held = os.pipe()
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own program, arguments are numbers
                    [*program, str(theirs.fileno()), str(os.getpid()), str(held)],
                    pass_fds=(theirs.fileno(), held),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    env=_environment(settings),
                    start_new_session=True,  # ^C in a terminal is for the gateway alone
                )
        except OSError as error:
            ours.close()
            os.close(lifeline)
            raise WorkerStartError(f"no model host could be started: {error}") from error
        finally:
            os.close(held)
        ours.settimeout(0.0)
        os.set_blocking(_output_of(process), False)
        host = cls(process, ours, lifeline, settings, on_progress, spare=spare)
        host._begin()
        return host

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked anything."""
        return not self._lost and not self._closing and self._reason is None

    @property
    def silence(self) -> float:
        """Seconds for which it has owed a sign that it works; 0 if it owes none.

        It owes one from a command on, a cancel included, until its next step: streams that come and
        go at a host that hangs don't begin this anew.
        """
        return 0.0 if self._owing_since is None else self._loop.time() - self._owing_since

    async def ready(self) -> Ready:
        """Waits until the model is loaded and warm.

        Raises:
            WorkerStartError: It can't be loaded, or the host died on it.
        """
        await asyncio.shield(self._started)
        if self.facts is not None:
            return self.facts
        crash = await asyncio.shield(self._death)
        if self._load_error is not None:
            raise WorkerStartError(self._load_error)
        raise WorkerStartError(f"the model could not be loaded: {crash.message}") from crash

    def load(self) -> None:
        """Lets a spare load its model, whether it is done with its preparations or not."""
        self._spare, self.waking = False, True
        if self.prepared:
            self._stage = "waking the spare host"
            self._stage_at = self._told_at = self._loop.time()
            self._silence = 0.0
            self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._on_progress(self._stage)
        self._send(Load(self._settings))

    async def closed(self) -> WorkerCrashedError:
        """Returns the cause when the host dies by itself or of a hang; never after `aclose`."""
        crash = await asyncio.shield(self._death)
        if self._closing:
            await self._loop.create_future()
        return crash

    async def reaped(self) -> None:
        """Waits until nothing is left of a host that died, its memory included: 5 s at the most."""
        await asyncio.shield(self._reaped)

    def open(
        self, make: Callable[[int], Admit | Count | Encode], beside: HostStream | None = None
    ) -> HostStream:
        """Sends a command that begins a stream.

        Args:
            make: Makes the command from the stream's number.
            beside: Those of the same request, which are read and left together with it.

        Raises:
            WorkerCrashedError: The host is gone.
        """
        if self._death.done():
            raise self._death.result()
        number = self._next_stream
        self._next_stream += 1
        data = frame(make(number))
        stream = self._streams[number] = beside or HostStream(self._forget)
        stream.numbers.append(number)
        self._write(data)
        self._owe()
        return stream

    def kill(self, reason: str, cause: BaseException | None = None) -> None:
        """Ends the host at once; every stream fails with the reason and its cause."""
        if self._reason is None and not self._lost:
            self._reason, self._cause = reason, cause
        self._process.kill()
        # its socket ends when it does; a process that hangs in the kernel doesn't, its streams must
        self._loop.call_later(KILLED_SECONDS, self._lose)

    async def aclose(self) -> None:
        """Asks the host to end, terminates it after 1 s, kills it after 2 s; 7 s at the most.

        Raises:
            CancelledError: The caller had no time for it; the host is killed at once.
        """
        self._closing = True
        try:
            if self.facts is not None:
                self._send(Shutdown())
                if await self._ends_within(ASKED_SECONDS):
                    return
            if not self._lost:
                self._process.terminate()
            if await self._ends_within(TERMINATED_SECONDS):
                return
            self.kill("it was shut down and didn't end by itself")
            await self._ends_within(KILLED_SECONDS)
        except asyncio.CancelledError:
            self.kill("its shutdown was interrupted")
            raise

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._reaped)
        except TimeoutError:
            return False
        return True

    def _begin(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._receive)
        self._loop.add_reader(self._lifeline, self._lose)
        self._loop.add_reader(_output_of(self._process), self._listen)
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._send((Prepare if self._spare else Load)(self._settings))

    def _tick(self) -> None:
        """Once a second while the model loads: shows that something goes on, or ends it."""
        now = self._loop.time()
        age = now - self._stage_at
        if age > self._settings.load_timeout:
            self.kill(f"loading got no further in {age:.0f} s")
            return
        # counted in looks, not read from the clock: whoever stops parent and child together and
        # lets both go on has not seen a silent host
        self._silence = 0.0 if self._signs.seen() else self._silence + TICK_SECONDS
        bound = self._settings.load_silence
        if self.waking and self.prepared:
            bound = min(bound, WAKE_SECONDS)
        if self._silence >= bound:
            self.kill(f"it gave no sign of life for {self._silence:.0f} s while: {self._stage}")
            return
        if now - self._told_at >= REPEAT_SECONDS and not self._spare:
            self._told_at = now
            self._on_progress(f"{self._stage} ({age:.0f} s)")
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _stop_ticking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _receive(self) -> bool:
        """Takes in what came; returns whether there may be more of it."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket.fileno())
            self._lose()
            return False
        try:
            for body in self._decoder.feed(data):
                self._handle(report_decoder.decode(body))
        except (WireError, msgspec.DecodeError) as error:
            self.kill(f"it sent what is no report: {error}", error)
        return True

    def _handle(self, report: Report) -> None:
        match report:
            case Step(events):
                self._steps += 1
                for event in events:
                    # a stream that was canceled may still be spoken of for one step
                    ends = isinstance(event, LAST_EVENTS)
                    find = self._streams.pop if ends else self._streams.get
                    if (stream := find(event.stream, None)) is not None:
                        stream.push(event)
                self._owing_since = self._loop.time() if self._streams else None
                if not self.stepped:
                    self._note_first_step(events)
            case Loading(stage):
                self._stage = stage
                self._stage_at = self._told_at = self._loop.time()
                self._silence = 0.0
                if self.prepared:
                    self.waking = False
                if not self._spare:
                    self._on_progress(stage)
            case Prepared():
                self.prepared = True
                if self._spare:
                    self._stage = "waiting as a spare"
                    self._stop_ticking()  # from now on it may be as silent as it likes
            case Warned(message):
                logger.warning("model %s: %s", self._settings.model, message)
            case LoadFailed(message):
                self._load_error = message
            case Ready():
                self._stop_ticking()
                self.facts = report
                self._started.set_result(None)
            case _:
                assert_never(report)

    def _note_first_step(self, events: list[StreamEvent]) -> None:
        # an answer to a count needs no step, and a refusal none of the model's
        if any(isinstance(event, Prefilled | Produced | Encoded | Completed) for event in events):
            self.stepped = True
            for stream in self._streams.values():
                stream.wake()

    def _listen(self) -> None:
        """Reads what the host printed."""
        output = _output_of(self._process)
        try:
            data = os.read(output, RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if data:
            self._tail.feed(data)
        else:
            self._loop.remove_reader(output)

    def _send(self, command: Command) -> None:
        self._write(frame(command))

    def _write(self, data: bytes) -> None:
        if self._lost:
            return
        self._outgoing += data
        if len(self._outgoing) == len(data):
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._outgoing)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            sent = len(self._outgoing)  # the reading side is about to learn of the host's end
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._socket.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _forget(self, number: int) -> None:
        if self._streams.pop(number, None) is not None:
            self._send(Cancel(number))
            self._owe()

    def _owe(self) -> None:
        if self._owing_since is None:
            self._owing_since = self._loop.time()

    def _lose(self) -> None:
        """Socket or lifeline has ended: the host is dead or as good as dead."""
        if self._lost:
            return
        self._lost = True
        self._stop_ticking()
        self._loop.remove_reader(self._lifeline)
        os.close(self._lifeline)
        self._loop.remove_writer(self._socket.fileno())
        self._reap(self._loop.time())

    def _reap(self, lost_at: float) -> None:
        # both end a moment before the process can be reaped; to kill it in that moment would cover
        # up how it ended
        returncode = self._process.poll()
        age = self._loop.time() - lost_at
        over = returncode is not None or age >= KILLED_SECONDS
        if not self._death.done():
            told = exit_of(self.pid) if not over and age >= REAPED_SECONDS else returncode
            if over or told is not None:
                self._tell_end(told)
        if over:
            self._reaped.set_result(None)
            return
        if age > ENDING_SECONDS:
            self._process.kill()
        self._loop.call_later(REAP_INTERVAL, self._reap, lost_at)

    def _tell_end(self, returncode: int | None) -> None:
        while self._receive():
            pass  # the lifeline may end before all has been read that was sent
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        output = self._process.stdout
        if output is not None:
            self._listen()
            self._loop.remove_reader(output.fileno())
            output.close()
        self._tail.close()
        self._die(self._crash(returncode))

    def _crash(self, returncode: int | None) -> WorkerCrashedError:
        text = crash_report(
            pid=self.pid, returncode=returncode, activity=self._activity(), tail=self._tail
        )
        if self._reason is not None:
            text = f"{text}; it was killed because {self._reason}"
        text += memory_limit(self._settings)
        crash = WorkerCrashedError(text)
        crash.__cause__ = self._cause
        return crash

    def _activity(self) -> str:
        if self._spare:
            return f"no model was loaded ({self._stage})"
        if self.facts is None:
            return f"loading ({self._stage})"
        if not self._streams:
            return f"idle after {self._steps} steps"
        writing = sum(stream.writing for stream in self._streams.values())
        reading = len(self._streams) - writing
        return f"in step {self._steps + 1} ({writing} writing, {reading} reading)"

    def _die(self, crash: WorkerCrashedError) -> None:
        self._death.set_result(crash)
        if not self._started.done():
            self._started.set_result(None)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(crash)


def _output_of(process: subprocess.Popen[bytes]) -> int:
    if process.stdout is None:
        raise OrchestratorError("a model host without an output pipe")
    return process.stdout.fileno()


def _environment(settings: TorchSettings) -> dict[str, str]:
    """What must be known before torch is imported, so in the child's environment."""
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer cores than the machine
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    threads = settings.threads or max(1, cores - 1)
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        # spinning threads next to a busy gateway cost three quarters of the tokens (measured)
        "OMP_WAIT_POLICY": "passive",
        # a killed host is gone only when its memory is taken apart: 80 ms of work for 300 MB in
        # small pages, 50 ms in large ones (measured)
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
    }
