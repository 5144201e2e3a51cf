"""pykka actors whose mailbox loop is an asyncio task.

`ActorRef.tell/ask/stop`, the registry and the hooks stay pykka's. What this file guards against
stands in the issue threads of jodal/pykka named below; the rules are:

    1. Nothing that a handler raises leaves its actor, `CancelledError` and `SystemExit` included
       (pykka stops every actor of the process on a BaseException).
    2. A death is told, with its cause, to the one who started the actor (pykka #70, #187); so is a
       failing `on_start`, which pykka only logs.
    3. An ask that the actor will never handle is answered with `ActorDeadError`, the one in hand
       included.
    4. `kill` ends an actor whose handler hangs; pykka's stop waits behind the mailbox (pykka #46).
    5. Waiting for an answer never blocks the loop (pykka #99).

All calls belong on the loop that runs the actor.
"""

import asyncio
import inspect
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

import pykka
from pykka._envelope import Envelope
from pykka._future import Future as PykkaFuture
from pykka._types import OptExcInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ref = pykka.ActorRef[Any]
OnDeath = Callable[[BaseException | None], None]

CANCEL_TIMEOUT = 10.0
"""Seconds that canceled work of an actor may take to end; then its end goes on without it."""


class LoopFuture(PykkaFuture[Any]):
    """The answer to an ask, awaitable without blocking the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def get(self, *, timeout: float | None = None) -> object:
        """Returns an answer that has come; waiting here would freeze every actor.

        Raises:
            RuntimeError: The answer has not come yet.
        """
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self._answer.done():
            raise RuntimeError("await the future: get() would block the loop of all actors")
        return self._answer.result()

    def set(self, value: object = None) -> None:
        """Answers; an asker that gave up is no error."""
        if not self._answer.done():
            self._answer.set_result(value)

    def set_exception(self, exc_info: OptExcInfo | None = None) -> None:
        """Answers with the exception that is being handled, or with the one given."""
        error = (exc_info[1] if exc_info is not None else None) or _current_exception()
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # an asker that gave up leaves no "never retrieved" behind

    def __await__(self) -> Generator[None, None, object]:
        return self._answer.__await__()


def _current_exception() -> BaseException:
    error = sys.exc_info()[1]
    return error if error is not None else RuntimeError("no exception is being handled")


class LoopInbox:
    """An actor's mailbox; unbounded, so what fills it is bounded elsewhere (by the queue)."""

    __slots__ = ("_letters", "_waiter", "begun", "doomed", "ended", "task")

    def __init__(self) -> None:
        self._letters: deque[Envelope[Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.doomed = False
        """Killed before the first step, which is where it then ends."""

    def put(self, envelope: Envelope[Any]) -> None:
        """Adds a letter."""
        self._letters.append(envelope)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def get(self) -> Envelope[Any]:
        """Takes the next letter of a mailbox that isn't empty."""
        return self._letters.popleft()

    def put_back(self, envelope: Envelope[Any]) -> None:
        """Puts a letter in hand back to the front."""
        self._letters.appendleft(envelope)

    def empty(self) -> bool:
        """Whether no letter waits."""
        return not self._letters

    async def next(self) -> Envelope[Any]:
        """Waits for the next letter and takes it."""
        while not self._letters:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._letters.popleft()


class LoopActor(pykka.Actor):
    """A pykka actor on the running event loop; `on_receive` may be a coroutine function.

    Args:
        on_death: Told once, with the cause, when the actor ends; the cause is None after a stop.
    """

    def __init__(self, *, on_death: OnDeath | None = None) -> None:
        super().__init__()
        self._on_death = on_death
        # a dict for its order: a set's is that of addresses, which no seed replays
        self._children: dict[asyncio.Task[Any], None] = {}

    @staticmethod
    def _create_actor_inbox() -> "LoopInbox":
        return LoopInbox()

    @staticmethod
    def _create_future() -> PykkaFuture[Any]:
        return LoopFuture()

    def _start_actor_loop(self) -> None:
        self._mailbox.task = asyncio.get_running_loop().create_task(
            self._live(), name=type(self).__name__
        )

    @property
    def _mailbox(self) -> LoopInbox:
        return cast("LoopInbox", self.actor_inbox)  # _create_actor_inbox made it

    async def release(self) -> None:
        """Frees what the actor holds, after its death was told; may wait, but not for ever."""

    def spawn(
        self, work: Coroutine[Any, Any, T], done: Callable[[T | BaseException], None]
    ) -> asyncio.Task[T | BaseException]:
        """Runs work beside the mailbox; the actor owns the task and cancels it at its end.

        Args:
            work: The coroutine.
            done: Called with the result, or with whatever was raised (a cancel included).
        """
        task = asyncio.get_running_loop().create_task(_contain(work))
        self._children[task] = None

        def over(task: asyncio.Task[T | BaseException]) -> None:
            self._children.pop(task, None)
            if task.cancelled():
                work.close()  # canceled before its first step, it would be "never awaited"
                _quietly(done, asyncio.CancelledError())
            else:
                _quietly(done, task.result())

        task.add_done_callback(over)
        return task

    async def _live(self) -> None:
        cause = await self._work_through_the_mailbox()
        self.actor_stopped.set()
        pykka.ActorRegistry.unregister(self.actor_ref)
        self._actor_loop_teardown()
        if self._on_death is not None:
            _quietly(self._on_death, cause)
        for child in list(self._children):
            child.cancel()
        try:
            await self._part_from_children()
            await self.release()
        except BaseException:  # rule 1: the end of one actor is no event for another
            logger.exception("%s could not free what it held", type(self).__name__)
        if not self._mailbox.ended.done():
            self._mailbox.ended.set_result(None)

    async def _part_from_children(self) -> None:
        if not self._children:
            return
        _, unwilling = await asyncio.wait(self._children, timeout=CANCEL_TIMEOUT)
        if unwilling:
            logger.error("%s leaves work behind that can't be canceled", type(self).__name__)

    async def _work_through_the_mailbox(self) -> BaseException | None:
        envelope: Envelope[Any] | None = None
        self._mailbox.begun = True
        try:
            if self._mailbox.doomed:
                raise asyncio.CancelledError  # noqa: TRY301 - the same end as a kill a step later
            self.on_start()
            while not self.actor_stopped.is_set():
                inbox = self._mailbox
                envelope = await inbox.next() if inbox.empty() else inbox.get()
                await self._handle(envelope)
                envelope = None
        except BaseException as error:  # noqa: BLE001 - rule 1
            if envelope is not None:
                self._mailbox.put_back(envelope)
            return error
        return None

    async def _handle(self, envelope: Envelope[Any]) -> None:
        try:
            result = self._handle_receive(envelope.message)
            if result is not None and inspect.isawaitable(result):
                result = await cast("Awaitable[object]", result)
        except Exception:
            if envelope.reply_to is None:
                raise  # a tell that fails ends the actor
            envelope.reply_to.set_exception()  # an ask that fails answers its caller
        else:
            if envelope.reply_to is not None:
                envelope.reply_to.set(result)


async def _contain(work: Coroutine[Any, Any, T]) -> T | BaseException:
    try:
        return await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - a SystemExit would end the whole loop
        return error


def _quietly(callback: Callable[[Any], None], value: object) -> None:
    try:
        callback(value)
    except pykka.ActorDeadError:
        logger.debug("the one to be told is gone")
    except Exception:  # rule 1: who is told must not break the teller
        logger.exception("a callback of the actor runtime failed")


def kill(ref: Ref) -> None:
    """Ends an actor now, whatever its handler is doing; nothing if it is ending already."""
    inbox = cast("LoopInbox", ref.actor_inbox)  # every ref here is a LoopActor's
    if not inbox.begun:
        inbox.doomed = True  # a task canceled before its first step would tell nobody of its end
    elif ref.is_alive() and inbox.task is not None:
        inbox.task.cancel()  # later the cancel would cut its release short


def gone(ref: Ref) -> bool:
    """Whether an actor has ended and freed what it held."""
    return cast("LoopInbox", ref.actor_inbox).ended.done()  # as above


async def ended(ref: Ref) -> None:
    """Waits until an actor is gone and has freed what it held."""
    await asyncio.shield(cast("LoopInbox", ref.actor_inbox).ended)  # as above


def tell(ref: Ref, message: object) -> bool:
    """Tells an actor; False if it is gone, which is no error to the teller."""
    try:
        ref.tell(message)
    except pykka.ActorDeadError:
        return False
    return True


async def ask(ref: Ref, message: object, *, within: float) -> object:
    """Asks an actor and waits without blocking the loop.

    Args:
        ref: Whom.
        message: What.
        within: Seconds.

    Raises:
        ActorDeadError: The actor is gone, or went before it answered.
        TimeoutError: No answer in time.
    """
    async with asyncio.timeout(within):
        return await ref.ask(message, block=False)
