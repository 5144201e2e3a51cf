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
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import uvloop

from orchestrator.channel import Channel
from orchestrator.config import Config, embedded_default, load
from orchestrator.errors import EngineDrainingError, InvalidRequestError, RequestCanceledError
from orchestrator.events import Ending, Failed, Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import (
    AttemptRecord,
    Message,
    Priority,
    PriorityRequest,
    SamplingParams,
    message_from,
)
from orchestrator.wiring import System, plan_deployments

T = TypeVar("T")
Received = tuple[list[TokenChunk], Ending | None]

LOOK_AGAIN = 1.0
"""Seconds after which a reader on another thread looks whether the engines' loop is still there."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage | None
    attempts: Sequence[AttemptRecord]


class TokenStream:
    """One request's answer: chunks as they come, then the end or an error of `errors`.

    Iterate over it with `for` or `async for`; or take it whole: `stream.result()` and
    `stream.text()` in plain code, `await stream` in a coroutine. A stream that is dropped or left
    early is canceled.
    """

    def __init__(self, request: PriorityRequest, home: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self._home = home
        self._ready: Iterator[TokenChunk] = iter(())
        self._ending: Ending | None = None
        self._texts: list[str] = []
        self._receiving: Future[Received] | None = None
        self._question: Coroutine[Any, Any, Received] | None = None
        self._taken: Received | None = None
        """What the question has taken from the channel; its answer may be lost on the way here."""

    def __repr__(self) -> str:
        return f"<TokenStream {self._request.request_id} {self._request.channel}>"

    @property
    def request_id(self) -> str:
        """The id in logs and headers."""
        return self._request.request_id

    @property
    def usage(self) -> Usage | None:
        """Tokens used; None before the end, or if nobody counted them."""
        return self._ending.usage if isinstance(self._ending, Finished) else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer is complete; None before the end."""
        return self._ending.finish_reason if isinstance(self._ending, Finished) else None

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        """What was tried so far, in order."""
        return tuple(self._request.attempts)

    def cancel(self) -> None:
        """Ends the request now, from any thread; reading it then raises `RequestCanceledError`."""
        channel = self._request.channel
        if channel.ending is not None or self._home.is_closed():
            return
        error = RequestCanceledError("the caller canceled the request")
        with contextlib.suppress(RuntimeError):  # the loop was closed just now: nothing runs
            self._home.call_soon_threadsafe(channel.end, Failed(error))

    def __iter__(self) -> Iterator[TokenChunk]:
        return self

    def __next__(self) -> TokenChunk:
        while (chunk := next(self._ready, None)) is None:
            self._end_if_due(StopIteration)
            if _running_loop() is self._home:
                raise RuntimeError("this would block its own loop: use `async for` or `await`")
            self._take(*self._wait_for_more())
        return chunk

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        while (chunk := next(self._ready, None)) is None:
            self._end_if_due(StopAsyncIteration)
            self._take(*await self._receive())
        return chunk

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._whole().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # a caller that goes away must not leave a slot working for it
        if self._ending is None:
            self.cancel()

    def text(self) -> str:
        """Waits for the whole answer and returns its text, from the first chunk on.

        Raises:
            OrchestratorError: The request failed.
        """
        return self.result().text

    def result(self) -> Answer:
        """Waits for the whole answer, from the first chunk on.

        Raises:
            OrchestratorError: The request failed.
            RuntimeError: Called in a coroutine; there, `await` the stream.
        """
        for _ in self:
            pass
        return self._answer()

    async def _whole(self) -> Answer:
        async for _ in self:
            pass
        return self._answer()

    def _answer(self) -> Answer:
        assert isinstance(self._ending, Finished)  # noqa: S101 - iteration has just ended well
        return Answer(
            text="".join(self._texts),
            finish_reason=self._ending.finish_reason,
            usage=self._ending.usage,
            attempts=self.attempts,
        )

    async def _receive(self) -> Received:
        if asyncio.get_running_loop() is self._home:
            return await self._request.channel.receive()
        while (receiving := self._ask_home()) is not None:
            answer = asyncio.wrap_future(receiving)
            # a wait that is canceled leaves what it waits for alone
            if (await asyncio.wait({answer}, timeout=LOOK_AGAIN))[0]:
                self._receiving = None
                return answer.result()
        return self._leftovers()

    def _wait_for_more(self) -> Received:
        while (receiving := self._ask_home()) is not None:
            with contextlib.suppress(TimeoutError):
                received = receiving.result(LOOK_AGAIN)
                self._receiving = None
                return received
        return self._leftovers()

    def _ask_home(self) -> Future[Received] | None:
        """Asks the engines' loop for what comes next; None if that loop is closed.

        A question that an interrupted read has left behind is still open, for its answer may hold
        tokens already, which must not be lost.
        """
        if self._home.is_closed():
            return None
        if self._receiving is None:
            question = self._question = self._receive_at_home()
            try:
                self._receiving = asyncio.run_coroutine_threadsafe(question, self._home)
            except RuntimeError:  # closed just now
                question.close()
                return None
        return self._receiving

    async def _receive_at_home(self) -> Received:
        self._taken = await self._request.channel.receive()
        return self._taken

    def _leftovers(self) -> Received:
        # a loop that is closed between a question's last step and the word of it answers nothing
        self._receiving = None
        if self._question is not None:
            self._question.close()  # one that had not begun would be "never awaited"
        if self._taken is not None:
            return self._taken
        chunks, ending = self._request.channel.take()
        return chunks, ending or Failed(EngineDrainingError("the orchestrator was closed"))

    def _take(self, chunks: list[TokenChunk], ending: Ending | None) -> None:
        self._taken = None
        self._ready = iter(chunks)
        self._texts += [chunk.text for chunk in chunks]
        self._ending = ending

    def _end_if_due(self, stop: type[Exception]) -> None:
        if isinstance(self._ending, Failed):
            raise self._ending.error
        if self._ending is not None:
            raise stop


class Orchestrator:
    """All deployments and routes of one configuration, ready for requests.

    Args:
        config: What to run.
    """

    def __init__(self, config: Config) -> None:
        self._set_up(
            System(*plan_deployments(config)),
            default_model=next(iter(config.all_routes)),
            drain=config.server.drain,
        )

    def _set_up(self, system: System, *, default_model: str, drain: float) -> None:
        self._system = system
        self._default_model = default_model
        self._drain = drain
        self._thread: _LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
        request = PriorityRequest(
            request_id=request_id or f"req_{secrets.token_hex(8)}",
            model=model or self._default_model,
            messages=_messages(prompt),
            sampling=_sampling(sampling),
            channel=Channel(),
            priority=Priority.of(priority),
            timeout=deadline,
            idempotent=idempotent,
            extra=extra or {},
        )
        if _running_loop() is loop:
            self._system.router.submit(request)
        else:
            loop.call_soon_threadsafe(self._system.router.submit, request)
        return TokenStream(request, loop)

    async def start(self) -> None:
        """Starts on the running loop; models go on loading after it returns."""
        self._loop = asyncio.get_running_loop()
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
        thread.run(self.start())
        self._thread = thread

    def close(self, *, drain: float | None = None) -> None:
        """Stops what `open` started; see `aclose`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self.aclose(drain=drain))
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
        return _wait(asyncio.run_coroutine_threadsafe(work, self._loop))

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


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:  # ^C while waiting must not leave the coroutine behind
        future.cancel()
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    if not isinstance(cast("object", prompt), Sequence):  # a caller may have no type checker
        raise InvalidRequestError("the prompt must be a text or a list of messages", param="prompt")
    return [
        message if isinstance(message, Message) else message_from(message, index)
        for index, message in enumerate(prompt)
    ]


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
    )
