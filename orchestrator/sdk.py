"""The Python SDK: `submit(...)` returns a stream that works in plain `for` and in `async for`.

    with Orchestrator.from_yaml("gateway.yaml") as orchestrator:
        for chunk in orchestrator.submit("Tell me a story"):
            print(chunk.text, end="")

An `Orchestrator` used with `async with` runs on the caller's loop. Used with `with` it runs the
same loop on a thread of its own; a stream of it may still be read from any other loop. `submit`
never waits: invalid input is raised at once, whatever happens later is raised by reading.
"""

import asyncio
import atexit
import os
import secrets
import threading
from collections.abc import Coroutine, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import uvloop

from orchestrator.channel import Channel
from orchestrator.config import Config, embedded_default, load
from orchestrator.errors import InvalidRequestError
from orchestrator.plan import plan_accounts, plan_deployments
from orchestrator.request import (
    Message,
    Priority,
    PriorityRequest,
    SamplingParams,
    is_unicode,
    message_from,
)
from orchestrator.stream import TokenStream, running_loop, wait_for
from orchestrator.wiring import System

T = TypeVar("T")
Prompt = str | Sequence[Message | Mapping[str, object]]
"""A user's text, or a conversation: `Message`s or mappings in OpenAI's shape."""


class Sampling(TypedDict, total=False):
    """Sampling parameters as keywords; units and ranges stand at `SamplingParams`."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    stop: str | Sequence[str] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    n: int | None


class Orchestrator:
    """All deployments and routes of one configuration, ready for requests.

    Args:
        config: What to run.
    """

    def __init__(self, config: Config) -> None:
        self._set_up(
            System(*plan_deployments(config), accounts=plan_accounts(config)),
            default_model=next(iter(config.all_routes)),
            drain=config.server.drain,
        )

    def _set_up(self, system: System, *, default_model: str, drain: float) -> None:
        self._system = system
        self._default_model = default_model
        self._drain = drain
        self._thread: _LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @classmethod
    def over(cls, system: System, *, default_model: str, drain: float) -> Self:
        """Wraps a system made from plans: a runner that no configuration names, or a simulation.

        Args:
            system: Not started yet.
            default_model: The route that is taken when a request names none.
            drain: Seconds that `close` gives to what runs.
        """
        orchestrator = cls.__new__(cls)
        orchestrator._set_up(  # noqa: SLF001 - the second way to make one
            system, default_model=default_model, drain=drain
        )
        return orchestrator

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Reads a configuration file.

        Raises:
            ConfigError: It can't be used; the message has a line for each fault.
        """
        return cls(load(path))

    @property
    def system(self) -> System:
        """What runs, for the gateway and for health."""
        return self._system

    def submit(
        self,
        prompt: Prompt,
        model: str | None = None,
        *,
        priority: Priority | str = Priority.NORMAL,
        deadline: float | None = None,
        caller: str = "",
        idempotent: bool = True,
        request_id: str | None = None,
        extra: Mapping[str, object] | None = None,
        **sampling: Unpack[Sampling],
    ) -> TokenStream:
        """Asks a model; the answer is streamed.

        Args:
            prompt: A text, or a conversation.
            model: A route's name; None takes the configuration's first.
            priority: `background`, `normal`, `high` or `critical`.
            deadline: Seconds from now for everything, waiting included; None takes the route's.
            caller: On whose behalf; callers of one priority take turns.
            idempotent: False forbids that a second attempt is made.
            request_id: For logs; None makes one.
            extra: Provider-specific fields of the request, passed on untouched.
            sampling: See `Sampling`.

        Raises:
            InvalidRequestError: Something in the request is wrong; `param` names it.
            RuntimeError: The orchestrator isn't running.
        """
        loop = self._loop  # read once: another thread may close meanwhile
        if loop is None:
            raise RuntimeError("the orchestrator isn't running: use it in `with` or `async with`")
        if self._process != os.getpid():
            raise RuntimeError("the process was forked; its child needs an orchestrator of its own")
        if not isinstance(cast("object", extra), Mapping | None):
            raise InvalidRequestError("extra must be a mapping", param="extra")
        request = PriorityRequest(
            request_id=request_id or f"req_{secrets.token_hex(8)}",
            model=model or self._default_model,
            messages=_messages(prompt),
            sampling=_sampling(sampling),
            channel=Channel(),
            priority=Priority.of(priority),
            timeout=deadline,
            caller=caller,
            idempotent=idempotent,
            extra=extra or {},
        )
        if running_loop() is loop:
            self._system.router.submit(request)
        else:
            loop.call_soon_threadsafe(self._system.router.submit, request)
        return TokenStream(request, loop)

    async def start(self) -> None:
        """Starts on the running loop; models go on loading after it returns.

        Raises:
            RuntimeError: It is running already.
        """
        if self._loop is not None:
            raise RuntimeError("the orchestrator is running already")
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._system.start()

    async def aclose(self, *, drain: float | None = None) -> None:
        """Stops: takes nothing new, lets what runs finish, ends the rest, frees everything.

        Args:
            drain: Seconds for what runs; None takes the configuration's.
        """
        await self._system.drain(self._drain if drain is None else drain)
        await self._system.aclose()
        self._loop = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def open(self) -> None:
        """Starts on a thread of its own, for plain code."""
        thread = _LoopThread()
        try:
            thread.run(self.start())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def close(self, *, drain: float | None = None) -> None:
        """Stops what `open` started; see `aclose`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self.aclose(drain=drain))
            except BaseException:
                # a second ^C: nothing is waited for, but a loop that stops under an attempt leaves
                # a generator behind that nobody can close
                thread.run(self._system.aclose())
                raise
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # after an exception, ^C included, nobody reads what still runs
        self.close(drain=None if error is None else 0.0)


class _LoopThread:
    """An event loop on a daemon thread; model hosts it spawns live no longer than the thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="orchestrator", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for its result."""
        return wait_for(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Ends loop and thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def submit(
    prompt: Prompt,
    model: str | None = None,
    *,
    priority: Priority | str = Priority.NORMAL,
    deadline: float | None = None,
    **sampling: Unpack[Sampling],
) -> TokenStream:
    """Asks the embedded default, which starts on first use and stops at exit.

    The arguments are those of `Orchestrator.submit`. The first answer waits until the model is
    loaded.

    Raises:
        InvalidRequestError: Something in the request is wrong; `param` names it.
        ConfigError: The embedded configuration can't be used.
    """
    return _default().submit(prompt, model, priority=priority, deadline=deadline, **sampling)


@cache
def _default() -> Orchestrator:
    orchestrator = Orchestrator.from_yaml(embedded_default())
    orchestrator.open()
    atexit.register(orchestrator.close, drain=0.0)
    return orchestrator


def _messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str):
        messages = [Message("user", prompt)]
    elif isinstance(cast("object", prompt), Sequence):  # a caller may have no type checker
        messages = [
            message if isinstance(message, Message) else message_from(message, index)
            for index, message in enumerate(prompt)
        ]
    else:
        raise InvalidRequestError("the prompt must be a text or a list of messages", param="prompt")
    for index, message in enumerate(messages):
        if not is_unicode(message.text):  # over HTTP the JSON reader has refused it
            raise InvalidRequestError(
                f"messages[{index}] has half a surrogate pair", param=f"messages[{index}].content"
            )
    return messages


def _sampling(given: Sampling) -> SamplingParams:
    for name in given:
        if name not in Sampling.__annotations__:
            near = get_close_matches(name, Sampling.__annotations__, n=1)
            names = ", ".join(Sampling.__annotations__)
            hint = f"did you mean {near[0]}?" if near else f"there are {names}"
            raise InvalidRequestError(f"{name} is no sampling parameter; {hint}", param=name)
    stop = given.get("stop") or ()
    if not isinstance(cast("object", stop), Sequence):
        raise InvalidRequestError("stop must be a text or a list of texts", param="stop")
    return SamplingParams(
        temperature=given.get("temperature"),
        top_p=given.get("top_p"),
        max_tokens=given.get("max_tokens"),
        seed=given.get("seed"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        presence_penalty=given.get("presence_penalty"),
        frequency_penalty=given.get("frequency_penalty"),
        n=1 if (answers := given.get("n")) is None else answers,
    )
