"""What the runtime promises on top of pykka, and the names of pykka that it leans on."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pykka
import pytest
from pykka import messages
from pykka._envelope import Envelope
from typing_extensions import override

from orchestrator.actors.runtime import LoopActor, LoopInbox, OnDeath, Ref, ask, ended, kill, tell
from orchestrator.chaos.simulation.world import run

Handler = Callable[["Played", object], object]


class Played(LoopActor):
    """An actor that does with a message what the test says."""

    def __init__(
        self,
        handler: Handler = lambda _, message: message,
        *,
        on_death: OnDeath | None = None,
        at_start: Callable[["Played"], None] = lambda _: None,
        at_release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(on_death=on_death)
        self._handler = handler
        self._at_start = at_start
        self._at_release = at_release

    @override
    def on_start(self) -> None:
        self._at_start(self)

    @override
    def on_receive(self, message: Any) -> object:
        return self._handler(self, message)

    @override
    async def release(self) -> None:
        if self._at_release is not None:
            await self._at_release()


def raising(error: BaseException) -> Handler:
    def handler(_: Played, message: object) -> object:
        if message == "fail":
            raise error
        return message

    return handler


def playing(work: Callable[[object], object]) -> Handler:
    return lambda _actor, message: work(message)


async def stopped(*refs: Ref) -> None:
    for ref in refs:
        ref.stop(block=False)
    for ref in refs:
        await ended(ref)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_create_actor_inbox", []),
        ("_create_future", []),
        ("_start_actor_loop", ["self"]),
        ("_handle_receive", ["self", "message"]),
        ("_actor_loop_teardown", ["self"]),
        ("_stop", ["self"]),
    ],
)
def test_pykka_still_has_the_hooks_that_the_runtime_fills(name: str, parameters: list[str]):
    hook = getattr(pykka.Actor, name)

    assert list(inspect.signature(hook).parameters) == parameters


async def test_pykka_still_makes_the_envelope_that_the_mailbox_carries():
    envelope = Envelope("hello", reply_to=None)
    inbox = LoopInbox()

    inbox.put(envelope)

    assert (envelope.message, envelope.reply_to) == ("hello", None)
    assert await inbox.next() is envelope


async def test_an_actor_keeps_the_mailbox_that_its_ref_writes_to():
    async with asyncio.timeout(5):
        ref = Played.start()

        assert isinstance(ref.actor_inbox, LoopInbox)
        assert await ask(ref, "hello", within=5) == "hello"
        await stopped(ref)


async def test_k1_an_error_on_ask_leaves_the_actor_alive():
    async with asyncio.timeout(5):
        ref = Played.start(raising(ValueError("no")))

        with pytest.raises(ValueError, match="no"):
            await ask(ref, "fail", within=5)

        assert await ask(ref, "still there", within=5) == "still there"
        await stopped(ref)


async def test_k2_a_tell_that_fails_is_told_to_who_started_the_actor():
    async with asyncio.timeout(5):
        causes: list[BaseException | None] = []
        error = ValueError("no")
        ref = Played.start(raising(error), on_death=causes.append)

        tell(ref, "fail")
        await ended(ref)

    assert causes == [error]
    assert tell(ref, "too late") is False


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt()])
async def test_k4_one_actors_baseexception_leaves_the_others_alive(error: BaseException):
    async with asyncio.timeout(5):
        causes: list[BaseException | None] = []
        victim = Played.start(raising(error), on_death=causes.append)
        neighbours = [Played.start() for _ in range(4)]

        with pytest.raises(pykka.ActorDeadError):
            await ask(victim, "fail", within=5)

        assert [await ask(ref, n, within=5) for n, ref in enumerate(neighbours)] == [0, 1, 2, 3]
        assert causes == [error]
        await stopped(*neighbours)


async def test_k3_asks_that_wait_behind_a_killed_handler_are_answered():
    async with asyncio.timeout(5):
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        ref = Played.start(playing(lambda _: hang()))
        asks = [ref.ask(n, block=False) for n in range(5)]
        await begun.wait()

        kill(ref)

        for answer in asks:
            with pytest.raises(pykka.ActorDeadError):
                await answer
        await ended(ref)


async def test_k3_an_ask_after_the_end_is_refused_at_once():
    async with asyncio.timeout(5):
        ref = Played.start()
        await stopped(ref)

        with pytest.raises(pykka.ActorDeadError):
            await ask(ref, "anyone?", within=5)


async def test_k5_waiting_for_an_answer_never_blocks_the_loop():
    async with asyncio.timeout(5):
        gate = asyncio.Event()

        async def slow() -> str:
            await gate.wait()
            return "done"

        ref = Played.start(playing(lambda _: slow()))
        answer = ref.ask("question", block=False)

        with pytest.raises(RuntimeError, match="await the future"):
            answer.get()
        asyncio.get_running_loop().call_soon(gate.set)  # runs only if awaiting lets the loop turn

        assert await answer == "done"
        await stopped(ref)


async def test_k7_a_kill_overtakes_all_that_waits_in_the_mailbox():
    async with asyncio.timeout(5):
        handled: list[object] = []
        gate = asyncio.Event()

        async def work(message: object) -> None:
            handled.append(message)
            await gate.wait()

        ref = Played.start(playing(work))
        for number in range(20):
            tell(ref, number)
        await asyncio.sleep(0)

        kill(ref)
        await ended(ref)

    assert handled == [0]


async def test_k8_a_failing_on_start_reaches_on_death():
    async with asyncio.timeout(5):
        causes: list[BaseException | None] = []
        error = RuntimeError("no model")

        def fail(_: Played) -> None:
            raise error

        ref = Played.start(on_death=causes.append, at_start=fail)
        question = ref.ask("hello", block=False)
        await ended(ref)

        with pytest.raises(pykka.ActorDeadError):
            await question

    assert causes == [error]


async def test_an_actor_that_is_killed_before_its_first_step_still_ends():
    async with asyncio.timeout(5):
        causes: list[BaseException | None] = []
        freed = asyncio.Event()

        async def free() -> None:
            freed.set()

        ref = Played.start(on_death=causes.append, at_release=free)
        question = ref.ask("hello", block=False)

        kill(ref)
        await ended(ref)

        with pytest.raises(pykka.ActorDeadError):
            await question

    assert [type(cause) for cause in causes] == [asyncio.CancelledError]
    assert freed.is_set()
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is None


async def test_a_second_kill_does_not_cut_the_release_short():
    async with asyncio.timeout(5):
        releasing, gate, freed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def free() -> None:
            releasing.set()
            await gate.wait()
            freed.set()

        ref = Played.start(at_release=free)
        kill(ref)
        await releasing.wait()

        kill(ref)
        gate.set()
        await ended(ref)

    assert freed.is_set()


async def test_work_that_was_spawned_brings_back_its_result():
    results = await spawned(returning(42))

    assert results == [42]


async def test_work_that_was_spawned_brings_back_its_exception():
    error = ValueError("no")

    assert await spawned(failing(error)) == [error]


async def test_work_that_was_spawned_brings_back_even_a_systemexit():
    error = SystemExit(3)

    assert await spawned(failing(error)) == [error]


async def test_work_that_is_cancelled_before_its_first_step_is_no_lost_coroutine():
    results = await spawned(returning(42), cancel=True)  # "never awaited" would be an error here

    assert [type(result) for result in results] == [asyncio.CancelledError]


async def test_the_end_of_an_actor_cancels_the_work_that_it_spawned():
    async with asyncio.timeout(5):
        results: list[object] = []
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        def start(actor: Played) -> None:
            actor.spawn(work(), results.append)

        ref = Played.start(at_start=start)
        await begun.wait()
        await stopped(ref)

    assert [type(result) for result in results] == [asyncio.CancelledError]


async def test_a_release_that_fails_still_ends_the_actor(caplog: pytest.LogCaptureFixture):
    async with asyncio.timeout(5):

        async def free() -> None:
            raise OSError("socket gone")

        ref = Played.start(at_release=free)
        await stopped(ref)

    assert "could not free what it held" in caplog.text


async def test_a_death_watch_that_fails_does_not_stop_the_release(
    caplog: pytest.LogCaptureFixture,
):
    async with asyncio.timeout(5):
        freed = asyncio.Event()

        async def free() -> None:
            freed.set()

        def watch(_: BaseException | None) -> None:
            raise RuntimeError("the watcher is broken")

        ref = Played.start(on_death=watch, at_release=free)
        await stopped(ref)

    assert freed.is_set()
    assert "the watcher is broken" in caplog.text


async def test_an_asker_that_gave_up_leaves_no_trace():
    async with asyncio.timeout(5):
        gate = asyncio.Event()

        async def slow() -> None:
            await gate.wait()
            raise ValueError("nobody listens")

        ref = Played.start(playing(lambda _: slow()))

        with pytest.raises(TimeoutError):
            await ask(ref, "question", within=0.01)
        gate.set()
        await stopped(ref)


async def test_a_stop_message_is_what_pykka_says_it_is():
    async with asyncio.timeout(5):
        ref = Played.start()

        answer = ref.ask(messages._ActorStop(), block=False)

        assert await answer is None
        await ended(ref)


async def returning(value: object) -> object:
    return value


async def failing(error: BaseException) -> object:
    raise error


async def spawned(work: Any, *, cancel: bool = False) -> list[object]:
    async with asyncio.timeout(5):
        results: list[object] = []
        over = asyncio.Event()

        def done(result: object) -> None:
            results.append(result)
            over.set()

        def start(actor: Played) -> None:
            task = actor.spawn(work, done)
            if cancel:
                task.cancel()

        ref = Played.start(at_start=start)
        await over.wait()
        await stopped(ref)
        return results


def test_work_that_resists_its_cancel_delays_the_end_for_ten_seconds_at_most():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        freed = asyncio.Event()

        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await freed.wait()

        def start(actor: Played) -> None:
            actor.spawn(stubborn(), lambda _: None)

        async def free() -> None:
            freed.set()

        ref = Played.start(at_start=start, at_release=free)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kill(ref)
        await ended(ref)
        return loop.time()

    assert run(0, main) == 10.0
