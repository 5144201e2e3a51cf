"""The public names as callers use them: plain code, coroutines, other loops, other threads."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

import orchestrator as public
from orchestrator.errors import (
    EngineDrainingError,
    InvalidRequestError,
    ModelNotFoundError,
    OrchestratorError,
    RequestCanceledError,
    UpstreamServerError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.plan import DeploymentPlan
from orchestrator.request import Message
from orchestrator.sdk import Orchestrator
from orchestrator.stream import Alternative, TokenStream
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Line, Stage
from tests.fakes.systems import make_request

TWO: tuple[Line, ...] = ("a", "b", DONE)


def over(stage: Stage, *, drain: float = 0.0, slots: int = 4) -> Orchestrator:
    plan = DeploymentPlan(name="m", factory=stage.factory(), slots=slots)
    return Orchestrator.over(System([plan], monitored=False), default_model="m", drain=drain)


def answering(*lines: Line) -> Stage:
    return Stage(lambda _request, _call: lines or TWO)


@contextmanager
def another_thread(work: Callable[[], object]) -> Generator[list[object]]:
    """Runs work beside the test and joins it."""
    results: list[object] = []

    def main() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    try:
        yield results
    finally:
        thread.join(5)


class Gate(asyncio.Event):
    """An event that any thread may open."""

    def open(self, home: asyncio.AbstractEventLoop) -> None:
        home.call_soon_threadsafe(self.set)


def home_of(stream: TokenStream) -> asyncio.AbstractEventLoop:
    return stream._home


def test_a_plain_for_reads_token_by_token_to_the_end() -> None:
    with over(answering()) as orchestrator:
        stream = orchestrator.submit("hi")
        texts = [chunk.text for chunk in stream]

    assert texts == ["a", "b"]
    assert stream.finish_reason == FinishReason.STOP
    assert stream.usage == DONE.usage
    assert [record.outcome for record in stream.attempts] == ["done"]


def test_the_whole_answer_comes_as_text_or_result() -> None:
    with over(answering()) as orchestrator:
        text = orchestrator.submit("hi").text()
        result = orchestrator.submit("hi").result()

    assert text == "ab"
    assert (result.text, result.finish_reason, result.usage) == ("ab", "stop", DONE.usage)


def test_several_answers_come_as_a_result_with_others() -> None:
    finished = Finished(FinishReason.STOP, None, (FinishReason.LENGTH,))
    pieces = (TokenChunk("a"), TokenChunk("x", index=1), TokenChunk("b"), finished)

    with over(answering(*pieces)) as orchestrator:
        answer = orchestrator.submit("hi", n=2).result()

    assert (answer.text, answer.finish_reason) == ("ab", FinishReason.STOP)
    assert answer.others == [Alternative("x", FinishReason.LENGTH)]


def test_the_result_holds_what_was_iterated_over_before() -> None:
    with over(answering()) as orchestrator:
        stream = orchestrator.submit("hi")
        first = next(stream).text

        assert (first, stream.text()) == ("a", "ab")


async def test_an_async_for_reads_on_the_callers_own_loop() -> None:
    async with asyncio.timeout(5), over(answering()) as orchestrator:
        texts = [chunk.text async for chunk in orchestrator.submit("hi")]
        answer = await orchestrator.submit("hi")

    assert texts == ["a", "b"]
    assert answer.text == "ab"


def test_an_async_for_reads_from_another_loop_too() -> None:
    async def read(orchestrator: Orchestrator) -> list[str]:
        async with asyncio.timeout(5):
            return [chunk.text async for chunk in orchestrator.submit("hi")]

    with over(answering()) as orchestrator:
        assert asyncio.run(read(orchestrator)) == ["a", "b"]


async def test_a_plain_for_on_its_own_loop_is_refused_and_does_not_freeze() -> None:
    async with asyncio.timeout(5), over(answering()) as orchestrator:
        stream = orchestrator.submit("hi")

        with pytest.raises(RuntimeError, match="async for"):
            stream.text()
        assert (await stream).text == "ab"


def test_an_error_is_raised_by_reading_and_raised_again() -> None:
    stage = answering(UpstreamServerError("500: out of cards"))
    with over(stage) as orchestrator:
        stream = orchestrator.submit("hi", idempotent=False)

        for _ in range(2):
            with pytest.raises(UpstreamServerError, match="out of cards"):
                stream.text()


@pytest.mark.parametrize(
    ("keywords", "param"),
    [
        ({"temperature": 3.0}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": float("nan")}, "top_p"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": float("inf")}, "deadline"),
        ({"deadline": "5"}, "deadline"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 2}, "priority"),
        ({"caller": "x" * 257}, "caller"),
        ({"caller": None}, "caller"),
        ({"max_token": 5}, "max_token"),
        ({"prompt": []}, "messages"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["hi"]}, "messages[0]"),
        ({"prompt": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"prompt": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_invalid_input_is_raised_at_once_and_names_its_field(
    keywords: dict[str, object], param: str
) -> None:
    stage = answering()
    with over(stage) as orchestrator:
        submit = cast("Callable[..., object]", orchestrator.submit)
        with pytest.raises(InvalidRequestError) as caught:
            submit(**({"prompt": "hi"} | keywords))

        assert caught.value.param == param
    assert stage.calls == []


def test_an_unknown_model_is_named_with_the_nearest_one() -> None:
    with over(answering()) as orchestrator, pytest.raises(ModelNotFoundError, match="no model"):
        orchestrator.submit("hi", model="n").text()


def test_a_conversation_may_be_messages_or_mappings() -> None:
    with over(answering()) as orchestrator:
        stream = orchestrator.submit(
            [Message("system", "be brief"), {"role": "user", "content": "hi"}]
        )

        assert [m.role for m in stream._request.messages] == ["system", "user"]
        assert stream.text() == "ab"


def test_a_cancel_from_another_thread_ends_a_read_that_waits() -> None:
    gate = Gate()
    stage = answering("a", gate, DONE)
    with over(stage) as orchestrator:
        stream = orchestrator.submit("hi")
        next(stream)

        with another_thread(stream.text) as results:
            stream.cancel()

        assert isinstance(results[0], RequestCanceledError)
    assert stage.running == 0


def test_a_stream_that_is_dropped_unread_is_canceled() -> None:
    begun, freed = threading.Event(), threading.Event()
    stage = answering("a", Gate(), DONE)
    stage.on_running = lambda running: (begun if running else freed).set()
    with over(stage) as orchestrator:
        stream = orchestrator.submit("hi")
        assert begun.wait(5)

        del stream
        gc.collect()

        assert freed.wait(5)


def test_leaving_a_stream_early_cancels_it() -> None:
    freed = threading.Event()
    stage = answering("a", Gate(), DONE)
    stage.on_running = lambda running: None if running else freed.set()
    with over(stage) as orchestrator, orchestrator.submit("hi") as stream:
        for _ in stream:
            break
        stream.cancel()

        assert freed.wait(5)


def test_a_close_with_work_in_flight_ends_every_stream_as_draining() -> None:
    stage = answering("a", Gate(), DONE)
    orchestrator = over(stage, slots=2)
    orchestrator.open()
    streams = [orchestrator.submit("hi") for _ in range(6)]
    next(streams[0])

    orchestrator.close()

    for stream in streams:
        with pytest.raises(EngineDrainingError):
            stream.text()
    assert stage.running == 0


def test_a_close_ends_a_reader_that_waits_in_another_thread() -> None:
    orchestrator = over(answering("a", Gate(), DONE))
    orchestrator.open()
    stream = orchestrator.submit("hi")
    next(stream)

    with another_thread(stream.text) as results:
        orchestrator.close()

    assert isinstance(results[0], EngineDrainingError)


def test_a_close_ends_requests_whose_inspection_still_runs() -> None:
    inspecting = threading.Event()

    async def inspect_for_ever() -> None:
        inspecting.set()
        await asyncio.Event().wait()

    stage = answering()
    stage.inspect = lambda _: inspect_for_ever()
    orchestrator = over(stage)
    orchestrator.open()
    stream = orchestrator.submit("hi")
    assert inspecting.wait(5)

    with another_thread(stream.text) as results:
        orchestrator.close()

    assert isinstance(results[0], EngineDrainingError)


def test_a_close_lets_what_runs_finish_within_its_drain() -> None:
    gate = Gate()
    orchestrator = over(answering("a", gate, "b", DONE), drain=5.0)
    orchestrator.open()
    stream = orchestrator.submit("hi")
    next(stream)

    with another_thread(orchestrator.close):
        gate.open(home_of(stream))

    assert stream.text() == "ab"


def test_what_came_before_a_close_is_read_after_it() -> None:
    with over(answering()) as orchestrator:
        stream = orchestrator.submit("hi")
        ended = threading.Event()
        home_of(stream).call_soon_threadsafe(stream._request.channel.watch, ended.set)
        assert ended.wait(5)

    assert stream.text() == "ab"


def test_another_loop_reads_after_a_close_what_is_left() -> None:
    with over(answering("a", Gate())) as orchestrator:
        stream = orchestrator.submit("hi")
        next(stream)

    async def read() -> None:
        async with asyncio.timeout(5):
            await stream

    with pytest.raises(EngineDrainingError):
        asyncio.run(read())


def test_a_close_that_is_interrupted_leaves_no_attempt_behind() -> None:
    stage = answering("a", Gate(), DONE)
    orchestrator = over(stage)
    orchestrator.open()
    stream = orchestrator.submit("x", "m")
    assert next(iter(stream)).text == "a"
    main = threading.main_thread().ident
    assert main is not None
    inflight = orchestrator._system.deployments["m"].inflight
    draining: list[None] = []

    def interrupt_once() -> None:
        if not draining:
            draining.append(None)
            signal.pthread_kill(main, signal.SIGINT)

    inflight.observe(interrupt_once)

    with pytest.raises(KeyboardInterrupt):
        orchestrator.close(drain=30.0)

    assert stage.running == 0
    with pytest.raises(EngineDrainingError):
        stream.result()


def test_a_submit_outside_of_with_is_refused_with_advice() -> None:
    orchestrator = over(answering())

    with pytest.raises(RuntimeError, match="use it in `with`"):
        orchestrator.submit("hi")
    with orchestrator:
        pass
    with pytest.raises(RuntimeError, match="isn't running"):
        orchestrator.submit("hi")


def test_an_interrupt_while_reading_loses_no_token() -> None:
    gate = Gate()
    with over(answering("a", gate, "b", "c", DONE)) as orchestrator:
        stream = orchestrator.submit("hi")
        next(stream)
        question = stream._ask_home()
        assert question is not None

        # ^C comes while the answer is already on its way
        gate.open(home_of(stream))
        question.result(5)

        assert stream.text() == "abc"


def test_a_read_from_another_loop_that_times_out_loses_no_token() -> None:
    gate = Gate()

    async def read(stream: TokenStream) -> str:
        async with asyncio.timeout(5):
            first = await anext(stream)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(stream)
            gate.open(home_of(stream))
            question = stream._receiving
            assert question is not None
            await asyncio.wrap_future(question)
            return first.text + "".join([chunk.text async for chunk in stream])

    with over(answering("a", gate, "b", "c", DONE)) as orchestrator:
        assert asyncio.run(read(orchestrator.submit("hi"))) == "abc"


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop that runs as many turns as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(*args, **kwargs)
        self.asked.set()
        return handle

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()


def test_a_loop_that_closes_with_an_answer_on_its_way_loses_no_token() -> None:
    home = SteppedLoop()
    request = make_request()
    stream = TokenStream(request, home)
    request.channel.begin(1)
    request.channel.send(TokenChunk("whole"), 1)
    request.channel.end(DONE)

    with another_thread(stream.text) as results:
        assert home.asked.wait(5)
        home.turn()  # makes a task of the question
        home.turn()  # which takes all from the channel, and whose end nobody hears of any more
        home.close()

    assert results == ["whole"]


def test_an_exception_in_the_with_block_does_not_wait_for_the_drain() -> None:
    stage = answering("a", Gate(), DONE)

    orchestrator = over(stage, drain=3600.0)
    orchestrator.open()
    stream = orchestrator.submit("hi")
    next(stream)
    orchestrator.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    with pytest.raises(EngineDrainingError):
        stream.text()


def test_two_orchestrators_in_one_process_know_nothing_of_each_other() -> None:
    first, second = answering("first", DONE), answering("second", DONE)
    with over(first) as one:
        with over(second) as other:
            texts = one.submit("hi").text(), other.submit("hi").text()
        again = one.submit("hi").text()

    assert texts == ("first", "second")
    assert again == "first"


def test_many_threads_read_their_own_answers_from_one_orchestrator() -> None:
    stage = Stage(lambda request, _: [request.request_id, DONE])
    answers: dict[str, str] = {}

    def ask(name: str) -> None:
        answers[name] = orchestrator.submit("hi", request_id=name).text()

    with over(stage) as orchestrator:
        threads = [threading.Thread(target=ask, args=(f"r{n}",)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)

    assert answers == {f"r{n}": f"r{n}" for n in range(16)}


def test_the_public_names_are_those_of_the_package() -> None:
    missing = [name for name in public.__all__ if not hasattr(public, name)]

    assert missing == []
    assert issubclass(InvalidRequestError, OrchestratorError)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ["chat"]}, "model"),
        ({"model": "c" * 1000}, "model"),
        ({"deadline": 10**400}, "deadline"),
        ({"temperature": 10**400}, "temperature"),
        ({"extra": "abc"}, "extra"),
        ({"stop": "\ud800"}, "stop"),
    ],
)
def test_whatever_is_wrong_is_raised_by_submit_and_never_waited_for(
    arguments: dict[str, Any], param: str
) -> None:
    with over(answering()) as orchestrator, pytest.raises(InvalidRequestError) as raised:
        orchestrator.submit("hi", **arguments)

    assert raised.value.param == param


@pytest.mark.parametrize("content", [5, b"x", ["x"], {"type": "text"}])
def test_a_content_that_is_no_content_is_refused_where_it_is_made(content: Any) -> None:
    with pytest.raises(InvalidRequestError):
        Message("user", content)


def test_half_a_character_in_a_prompt_is_refused() -> None:
    with over(answering()) as orchestrator, pytest.raises(InvalidRequestError) as raised:
        orchestrator.submit("\ud83d")

    assert raised.value.param == "messages[0].content"


def test_opening_it_twice_is_refused_and_the_first_goes_on() -> None:
    with over(answering()) as orchestrator:
        with pytest.raises(RuntimeError, match="running already"):
            orchestrator.open()

        assert orchestrator.submit("hi").text() == "ab"


def test_a_submit_in_a_forked_child_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with over(answering()) as orchestrator:
        monkeypatch.setattr("os.getpid", lambda: -1)  # what a child would see
        with pytest.raises(RuntimeError, match="forked"):
            orchestrator.submit("hi")
        monkeypatch.undo()


def test_a_second_reader_is_refused_and_no_token_is_read_twice() -> None:
    gate = threading.Event()
    seen: list[str] = []
    with over(answering("a", 0.2, "b", DONE)) as orchestrator:
        stream = orchestrator.submit("hi")
        first = next(stream).text

        def read() -> None:
            gate.set()
            seen.extend(chunk.text for chunk in stream)

        reader = threading.Thread(target=read)
        reader.start()
        gate.wait(5)
        with suppress(RuntimeError):  # unless the other one has read it all before
            seen.extend(chunk.text for chunk in stream)
        reader.join(5)

    assert first == "a"
    assert seen == ["b"]
