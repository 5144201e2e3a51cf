"""One request's answer as its caller reads it: in plain `for`, in `async for`, or whole.

The channel lives on the engines' loop; a stream may be read there, on any other loop, or on a
thread without one. A hop between threads brings all chunks that are ready.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from orchestrator.errors import EngineDrainingError, RequestCanceledError
from orchestrator.events import Ending, Failed, Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import AttemptRecord, PriorityRequest

T = TypeVar("T")
Received = tuple[list[TokenChunk], Ending | None]

LOOK_AGAIN = 1.0
"""Seconds after which a reader on another thread looks whether the engines' loop is still there."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A further answer to the same messages."""

    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage | None
    attempts: Sequence[AttemptRecord]
    others: Sequence[Alternative] = ()
    """The further ones, where `n` asked for several."""
    passed_over: Sequence[tuple[str, str]] = ()
    """Deployments that refused the request without an attempt, each with the error's code."""


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
        self._others: dict[int, list[str]] = {}
        """Texts of the further answers, by their place."""
        self._reading = threading.Lock()
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

    @property
    def passed_over(self) -> Sequence[tuple[str, str]]:
        """Deployments that refused it without an attempt so far, each with the error's code."""
        return tuple(self._request.passed_over)

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
            if running_loop() is self._home:
                raise RuntimeError("this would block its own loop: use `async for` or `await`")
            with self._alone():
                self._take(*self._wait_for_more())
        return chunk

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        while (chunk := next(self._ready, None)) is None:
            self._end_if_due(StopAsyncIteration)
            with self._alone():
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
            passed_over=self.passed_over,
            others=[
                Alternative("".join(self._others.get(place, ())), reason)
                for place, reason in enumerate(self._ending.others, start=1)
            ],
        )

    @contextlib.contextmanager
    def _alone(self) -> Generator[None, None, None]:
        # two readers at once would each get every token
        if not self._reading.acquire(blocking=False):
            raise RuntimeError("another thread or task is reading this stream")
        try:
            yield
        finally:
            self._reading.release()

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
        if self._request.sampling.n == 1:
            self._texts += [chunk.text for chunk in chunks]
        else:
            for chunk in chunks:
                texts = self._others.setdefault(chunk.index, []) if chunk.index else self._texts
                texts.append(chunk.text)
        self._ending = ending

    def _end_if_due(self, stop: type[Exception]) -> None:
        if isinstance(self._ending, Failed):
            raise self._ending.error
        if self._ending is not None:
            raise stop


def wait_for(future: Future[T]) -> T:
    """Waits on this thread for what another one works on; an interrupt takes the work back."""
    try:
        return future.result()
    except BaseException:  # ^C while waiting must not leave the coroutine behind
        future.cancel()
        raise


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs on this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
