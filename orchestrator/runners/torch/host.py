"""The model host: a child process with one model, `python -m orchestrator.runners.torch.host`.

One thread alternates between commands and model steps, another holds the lifeline, and it lives as
long as the other end of its socket. Its arguments are the socket's descriptor, its parent's process
id and the lifeline's descriptor.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import describe
from orchestrator.runners.torch import lifeline
from orchestrator.runners.torch.settings import TorchSettings, memory_limit
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Command,
    Count,
    Encode,
    FrameDecoder,
    Load,
    LoadFailed,
    Loading,
    Prepare,
    Prepared,
    Ready,
    Report,
    Shutdown,
    Step,
    StreamEvent,
    Warned,
    command_decoder,
    frame,
)

if TYPE_CHECKING:
    from orchestrator.runners.torch.engine import Engine  # torch comes with it, see `start`

PR_SET_PDEATHSIG = 1
RECEIVE_BYTES = 1 << 16


class PartedError(SystemExit):
    """The parent is gone or has closed the socket: there is nobody to work for.

    A `SystemExit`, so that no handler on the way takes it for a fault of the model.
    """


class Link:
    """The host's end of the socket; sending waits for room, receiving only when told to.

    Args:
        descriptor: The inherited file descriptor of a stream socket.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # whatever the model's libraries start must not keep the socket open after this process
        self._socket.set_inheritable(False)
        self._decoder = FrameDecoder()

    def send(self, report: Report) -> None:
        """Sends one report.

        Raises:
            PartedError: Nobody is there to take it.
        """
        try:
            self._socket.sendall(frame(report))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PartedError from error

    def receive(self, *, wait: bool) -> list[Command]:
        """Returns the commands that are there; with `wait`, at least one.

        Raises:
            PartedError: The other end is closed.
        """
        commands: list[Command] = []
        while (wait and not commands) or select.select([self._socket], [], [], 0)[0]:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise PartedError
            commands.extend(command_decoder.decode(body) for body in self._decoder.feed(data))
        return commands


def guard_against_orphanage(parent: int) -> None:
    """Makes the kernel kill this process when its parent (thread) ends; where it can't, EOF does.

    Raises:
        PartedError: The parent had ended before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise PartedError


def session_niceness(autogroup: str) -> int | None:
    """The niceness that `/proc/PID/autogroup` tells, as in `/autogroup-25 nice 5`.

    It tells nothing, and the file is empty, of a process in a control group with a share of its
    own, as in most containers: no session is scheduled there.
    """
    found = re.search(r" nice (-?\d+)$", autogroup.strip())
    return None if found is None else int(found[1])


def stand_back(niceness: int) -> None:
    """Lowers this process's claim to the processor.

    Linux may share it out by sessions first, `sched(7)`, "The autogroup feature". Then the niceness
    of a host, which has a session of its own, says nothing to its gateway, but its session's does.
    """
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return  # the session is somebody else's, too
    with contextlib.suppress(OSError):  # without the feature there is no such file
        theirs = session_niceness(Path(f"/proc/{os.getppid()}/autogroup").read_text("utf-8"))
        if theirs is not None:
            ours = min(19, theirs + niceness)
            Path("/proc/self/autogroup").write_text(str(ours), encoding="utf-8")


def bound(settings: TorchSettings) -> None:
    """Keeps this process within what its settings allow; a system without such limits has none."""
    if settings.niceness:
        stand_back(settings.niceness)
    if settings.memory is not None and sys.platform == "linux":
        # counts all that is private and writable, so no memory that is shared with other processes;
        # an address space is many times what torch uses of it
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory, settings.memory))


@contextlib.contextmanager
def told(link: Link, settings: TorchSettings) -> Generator[None]:
    """Tells the parent of what goes wrong within.

    Raises:
        SystemExit: Something did; the parent has been told.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"a local model needs {error.name!r}: pip install 'orchestrator[torch]'"
        link.send(LoadFailed(text))
        raise SystemExit(text) from error
    except Exception as error:
        limit = memory_limit(settings)
        text = f"model {settings.model!r} can't be loaded: {describe(error)}{limit}"
        link.send(LoadFailed(text))
        traceback.print_exception(error)
        raise SystemExit(1) from error


def first_commands(link: Link, get_ready: Callable[[], None]) -> tuple[Load, list[Command]]:
    """Waits until it is told to load, a spare host also until it is needed.

    Args:
        link: Where the commands come from.
        get_ready: Imports what the model needs: seconds, so the parent hears of this process first,
            and of what is missing.

    Returns:
        What to load, and the commands that came with it.

    Raises:
        PartedError: The parent is gone.
        SystemExit: The imports failed, or the parent doesn't keep to the protocol.
    """
    first, *others = link.receive(wait=True)
    if not isinstance(first, Load | Prepare):
        raise SystemExit(f"the first command must be to load, not {type(first).__name__}")
    bound(first.settings)
    with told(link, first.settings):
        link.send(Loading("starting torch"))
        get_ready()
    if isinstance(first, Prepare):
        link.send(Prepared())
        first, *others = others or link.receive(wait=True)
        if not isinstance(first, Load):
            raise SystemExit(f"a spare host must be told to load, not {type(first).__name__}")
    return first, others


def imports() -> None:
    """Imports what a model that chats needs, torch and transformers among it."""
    import_module("orchestrator.runners.torch.engine")
    import_module("orchestrator.runners.torch.loading")


def start(link: Link, settings: TorchSettings) -> "tuple[Engine, Ready]":
    """Loads and warms up the model, telling each stage.

    Raises:
        SystemExit: It couldn't be loaded; the parent has been told.
    """
    with told(link, settings):
        from orchestrator.runners.torch.engine import Engine  # noqa: PLC0415 - torch comes with it
        from orchestrator.runners.torch.loading import load  # noqa: PLC0415 - as above
        from orchestrator.runners.torch.passes import passes_for  # noqa: PLC0415 - as above

        def warn(message: str) -> None:
            link.send(Warned(message))

        loaded = load(settings, lambda stage: link.send(Loading(stage)), warn=warn)
        link.send(Loading("warming up"))
        passes = passes_for(
            loaded.model,
            context=loaded.facts.context_length,
            tokens=settings.max_batch_tokens,
            warn=warn,
        )
        engine = Engine(loaded, passes)
        engine.warm_up()
    return engine, loaded.facts


def serve(link: Link) -> None:
    """Loads what the first command says, then alternates commands and steps until told to end.

    Raises:
        PartedError: The parent is gone.
        SystemExit: The model couldn't be loaded, or the parent doesn't keep to the protocol.
    """
    load, early = first_commands(link, imports)
    engine, facts = start(link, load.settings)
    link.send(facts)
    while True:
        events: list[StreamEvent] = []
        heard = False
        for command in early or link.receive(wait=engine.idle):
            match command:
                case Admit():
                    events.extend(engine.admit(command))
                case Cancel(stream):
                    engine.cancel(stream)
                    heard = True
                case Count():
                    events.extend(engine.count(command))
                case Shutdown():
                    return
                case Load() | Prepare():
                    raise SystemExit("a host loads one model")
                case Encode():
                    raise SystemExit("this host's model writes texts")
        early.clear()
        events.extend(engine.step())
        if events or heard:  # a cancel is answered too: the parent counts who is silent
            link.send(Step(events))


def entered() -> int:
    """Sets this process up as a host; returns the descriptor of its socket.

    Raises:
        PartedError: The parent had ended before.
    """
    faulthandler.enable()
    # ^C in a terminal is for the gateway, which ends its hosts in its own order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, parent, life = map(int, sys.argv[1:4])
    guard_against_orphanage(parent)
    lifeline.hold(life)
    return descriptor


def main(link: Callable[[int], Link] = Link) -> None:
    """Runs the host until its parent lets go of it.

    Args:
        link: Makes the link from the socket's descriptor.
    """
    serve(link(entered()))


if __name__ == "__main__":
    main()
