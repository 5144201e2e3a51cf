"""One attempt gives back all it took, on every way out, and says what happened as a value."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from orchestrator.attempt import (
    Canceled,
    Gates,
    GaveUp,
    Interrupted,
    Outcome,
    TryAgain,
    after_failure,
    attempt,
    outcome_name,
)
from orchestrator.errors import (
    CircuitOpenError,
    InternalError,
    InvalidRequestError,
    OrchestratorError,
    RequestCanceledError,
    UpstreamConflictError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTimeoutError,
    UpstreamTruncatedError,
    WorkerHungError,
)
from orchestrator.events import Failed, Finished, FinishReason, TokenChunk, Usage
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetryBudget, RetryPolicy, RetrySettings
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.resume import Seam
from orchestrator.runners.base import Abilities
from orchestrator.runners.lease import Lease, Step, StepLimits
from orchestrator.standing import Meter
from tests.fakes.scripted import DONE, Line, ScriptedRunner, Stage
from tests.fakes.systems import make_request

EPOCH = 7


class Try:
    """One attempt at a scripted runner, and what it leaves behind."""

    def __init__(
        self,
        lines: Sequence[Line],
        *,
        local: bool = False,
        limits: StepLimits | None = None,
        tokens_per_minute: float | None = 60_000,
        request: PriorityRequest | None = None,
    ) -> None:
        self.stage = Stage(lambda _request, _call: lines, local=local)
        self.request = request or make_request(max_tokens=100)
        self.request.channel.begin(EPOCH)
        self.limiter = RateLimiter(
            RateLimits(requests_per_minute=600, tokens_per_minute=tokens_per_minute)
        )
        self.breaker = Breaker("m", failure_threshold=3, open_for=10.0)
        self.gates = Gates(
            limiter=self.limiter,
            breaker=self.breaker,
            retry=RetryPolicy(RetrySettings(), RetryBudget()),
            limits=limits or StepLimits(),
        )
        self.record = AttemptRecord(
            deployment="m", worker="m/0.1", epoch=EPOCH, started_at=0.0, queued_for=0.0
        )
        self.permit = self.reserve()

    def reserve(self) -> Permit:
        permit = self.limiter.reserve(
            self.request.estimated_prompt_tokens,
            self.request.estimated_answer_tokens,
            asyncio.get_running_loop().time(),
        )
        assert permit is not None
        return permit

    async def run(self) -> OrchestratorError | None:
        return await attempt(
            self.request,
            EPOCH,
            self.permit,
            self.gates,
            ScriptedRunner(self.stage),
            self.record,
        )

    def half_open(self) -> None:
        """Trips the breaker and lets its time pass, so that this attempt is the one probe."""
        for _ in range(3):
            self.breaker.failed(self.breaker.admit(0.0), UpstreamServerError("500"))
        self.breaker._opened_at -= 11.0

    def at_rest(self) -> bool:
        return (self.limiter.outstanding, self.breaker._probing, self.stage.running) == (0, 0, 0)

    def level(self) -> float:
        return dict(self.limiter.keys[0]._windows)[Meter.TOKENS].used


async def test_a_whole_answer_settles_its_permit_by_real_usage() -> None:
    async with asyncio.timeout(5):
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        tried = Try(["a", Finished(FinishReason.STOP, usage)])

        error = await tried.run()

    assert error is None
    assert tried.at_rest()
    assert tried.level() == pytest.approx(15, abs=1)
    assert tried.request.channel.ending == Finished(FinishReason.STOP, usage)


async def test_tokens_are_counted_from_the_stream_when_nobody_reports_usage() -> None:
    async with asyncio.timeout(5):
        tried = Try(["a"] * 7 + [Finished(FinishReason.STOP)])

        await tried.run()

    assert tried.level() == pytest.approx(1 + 7, abs=1)


@pytest.mark.parametrize(
    "gate_at", ["before the first token", "between two tokens", "before the ending"]
)
@pytest.mark.parametrize("probe", [False, True])
async def test_a_cancel_at_any_await_gives_everything_back(gate_at: str, probe: bool) -> None:
    async with asyncio.timeout(5):
        gate = asyncio.Event()
        lines: dict[str, list[Line]] = {
            "before the first token": [gate, "a", DONE],
            "between two tokens": ["a", gate, "b", DONE],
            "before the ending": ["a", "b", gate, DONE],
        }
        tried = Try(lines[gate_at])
        if probe:
            tried.half_open()
        state = "half-open" if probe else "closed"
        running = asyncio.Event()
        tried.stage.on_running = lambda _: running.set()
        task = asyncio.create_task(tried.run())
        await running.wait()
        for _ in range(3):
            await asyncio.sleep(0)

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert tried.at_rest()
    assert tried.breaker.state == state
    assert tried.request.channel.ending is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
async def test_even_a_baseexception_of_the_runner_gives_everything_back(
    error: BaseException,
) -> None:
    tried = Try(["a", error])
    tried.half_open()

    # driven by hand: a task would bring the loop down with it
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whichever it is
        tried.run().send(None)

    assert caught.value is error
    assert tried.at_rest()


async def test_p6_a_client_cancel_does_not_move_the_breaker() -> None:
    async with asyncio.timeout(5):
        tried = Try([asyncio.Event()])
        for _ in range(10):
            tried.permit = tried.reserve()
            task = asyncio.create_task(tried.run())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    assert tried.breaker.state == "closed"
    assert tried.breaker._machine.fail_counter == 0


async def test_an_open_breaker_gives_the_permit_back_whole() -> None:
    async with asyncio.timeout(5):
        tried = Try(["a", DONE])
        for _ in range(3):
            now = asyncio.get_running_loop().time()
            tried.breaker.failed(tried.breaker.admit(now), UpstreamServerError("500"))

        error = await tried.run()

    assert isinstance(error, CircuitOpenError)
    assert tried.stage.calls == []
    assert tried.at_rest()
    assert tried.level() == 0


async def test_a_timeout_that_the_runner_raises_itself_is_no_expired_lease() -> None:
    async with asyncio.timeout(5):
        tried = Try([TimeoutError("of its own")], local=True)

        error = await tried.run()

    assert isinstance(error, InternalError)
    assert "TimeoutError" in str(error)
    assert "of its own" in str(error.__cause__)
    assert tried.stage.hung == []


async def test_an_expired_lease_of_a_provider_is_its_timeout() -> None:
    async with asyncio.timeout(5):
        limits = StepLimits(first_token=0.01)
        tried = Try([asyncio.Event(), DONE], limits=limits)

        error = await tried.run()

    assert isinstance(error, UpstreamTimeoutError)
    assert "first token" in str(error)
    assert tried.breaker._machine.fail_counter == 1
    assert tried.stage.hung == []
    assert tried.at_rest()


async def test_an_expired_lease_of_a_local_model_is_a_hang_and_its_host_is_told() -> None:
    async with asyncio.timeout(5):
        limits = StepLimits(inter_token=0.01)
        tried = Try(["a", asyncio.Event(), DONE], local=True, limits=limits)

        error = await tried.run()

    assert isinstance(error, WorkerHungError)
    assert tried.stage.hung == [error]
    assert tried.breaker._machine.fail_counter == 0
    assert tried.at_rest()


async def test_a_slow_stream_with_progress_outlives_many_leases() -> None:
    async with asyncio.timeout(5):
        limits = StepLimits(first_token=0.2, inter_token=0.2)
        lines: list[Line] = []
        for _ in range(20):
            lines += ["a", 0.02]
        tried = Try([*lines, DONE], local=True, limits=limits)

        error = await tried.run()

    assert error is None


async def test_a_cancel_and_an_expired_lease_together_are_a_cancel() -> None:
    async with asyncio.timeout(5):
        tried = Try([asyncio.Event()], limits=StepLimits(first_token=0.0))
        task = asyncio.create_task(tried.run())
        await asyncio.sleep(0)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task

    assert tried.at_rest()


async def test_an_end_without_a_finish_reason_is_a_cut_stream_and_counts() -> None:
    async with asyncio.timeout(5):
        tried = Try(["half an", " ans"])

        error = await tried.run()

    assert isinstance(error, UpstreamTruncatedError)
    assert tried.breaker._machine.fail_counter == 1
    assert tried.request.channel.ending is None


async def test_an_attempt_whose_request_has_ended_stops_and_is_no_verdict() -> None:
    async with asyncio.timeout(5):
        tried = Try(["a", "b", DONE])
        tried.request.channel.end(Failed(RequestCanceledError("gone")))
        tried.half_open()

        error = await tried.run()

    assert error is None
    assert tried.breaker.state == "half-open"
    assert tried.at_rest()


async def test_an_attempt_of_an_old_epoch_writes_nothing() -> None:
    async with asyncio.timeout(5):
        tried = Try(["a", "b", DONE])
        tried.request.channel.begin(EPOCH + 1)

        await tried.run()

    assert tried.request.channel.ending is None
    assert tried.request.channel.late_events == 1


async def test_a_429_pauses_the_key_and_leaves_the_breaker_alone() -> None:
    async with asyncio.timeout(5):
        tried = Try([UpstreamRateLimitedError("slow down", retry_after=30.0)])

        await tried.run()
        now = asyncio.get_running_loop().time()

    assert tried.limiter.paused_until == pytest.approx(now + 30.0, abs=1.0)
    assert tried.breaker._machine.fail_counter == 0


async def test_a_429_with_an_absurd_hint_pauses_the_key_for_an_hour() -> None:
    async with asyncio.timeout(5):
        tried = Try([UpstreamRateLimitedError("slow down", retry_after=1e9)])

        await tried.run()
        now = asyncio.get_running_loop().time()

    assert tried.limiter.paused_for(now) == pytest.approx(3600.0, abs=1.0)


async def test_a_conflict_does_not_move_the_breaker() -> None:
    async with asyncio.timeout(5):
        tried = Try([UpstreamConflictError("again")])

        error = await tried.run()

    assert isinstance(error, UpstreamConflictError)
    assert tried.breaker._machine.fail_counter == 0


class Impolite:
    """A runner whose generator goes on after the finish and must be closed."""

    def __init__(self) -> None:
        self.closed_at = ""

    @property
    def abilities(self) -> Abilities:
        return Abilities()

    async def start(self) -> None: ...

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        lease.arm(Step.CONNECT)
        try:
            yield TokenChunk("a")
            yield DONE
            yield TokenChunk("after the end")
        except GeneratorExit:
            self.closed_at = "the finish"
            raise

    async def closed(self) -> BaseException:
        await asyncio.Event().wait()
        raise AssertionError

    def hung(self, cause: WorkerHungError) -> None: ...

    async def aclose(self) -> None: ...


async def test_nothing_is_read_beyond_the_finish_and_the_generator_is_closed() -> None:
    async with asyncio.timeout(5):
        tried = Try([])
        runner = Impolite()

        await attempt(tried.request, EPOCH, tried.permit, tried.gates, runner, tried.record)
        chunks, ending = await tried.request.channel.receive()

    assert [chunk.text for chunk in chunks] == ["a"]
    assert ending == DONE
    assert runner.closed_at == "the finish"


# --- what an error means -------------------------------------------------------------------------


def decide(request: PriorityRequest, error: OrchestratorError, *, attempts: int = 1) -> Outcome:
    gates = Gates(
        limiter=RateLimiter(RateLimits()),
        breaker=Breaker("m"),
        retry=RetryPolicy(RetrySettings(initial_backoff=0.001), RetryBudget()),
        limits=StepLimits(),
    )
    return after_failure(request, error, attempts=attempts, gates=gates, now=0.0)


async def test_an_error_before_anything_was_read_is_tried_again_and_its_text_taken_back() -> None:
    request = make_request()
    request.channel.begin(1)
    request.channel.send(TokenChunk("unread"), 1)

    outcome = decide(request, UpstreamServerError("500"))
    request.channel.begin(2)
    request.channel.send(TokenChunk("fresh"), 2)
    chunks, _ = await request.channel.receive()

    assert isinstance(outcome, TryAgain)
    assert [chunk.text for chunk in chunks] == ["fresh"]


async def test_an_error_after_a_token_was_read_is_never_followed_by_another_attempt() -> None:
    request = make_request()
    request.channel.begin(1)
    request.channel.send(TokenChunk("read"), 1)
    await request.channel.receive()

    outcome = decide(request, UpstreamServerError("500"))

    assert isinstance(outcome, Interrupted)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UpstreamServerError("500"), "retried"),
        (CircuitOpenError("open"), "gave_up"),
        (InvalidRequestError("400"), "gave_up"),
        (InternalError("bug"), "gave_up"),
        (UpstreamRateLimitedError("429", retry_after=86_400.0), "gave_up"),
    ],
)
def test_what_an_error_means_is_read_from_its_class(
    error: OrchestratorError, expected: str
) -> None:
    assert outcome_name(decide(make_request(), error)) == expected


def test_a_request_that_is_not_idempotent_is_never_tried_again() -> None:
    outcome = decide(make_request(idempotent=False), UpstreamServerError("500"))

    assert isinstance(outcome, GaveUp)


def test_the_last_attempt_that_is_allowed_gives_up() -> None:
    outcome = decide(make_request(), UpstreamServerError("500"), attempts=3)

    assert isinstance(outcome, GaveUp)


def test_a_failure_of_a_request_that_has_ended_changes_nothing() -> None:
    request = make_request()
    request.channel.end(Failed(RequestCanceledError("gone")))

    assert isinstance(decide(request, UpstreamServerError("500")), Canceled)


@pytest.mark.parametrize(
    ("seam", "answers", "goes_on"),
    [
        (Seam.PREFILL, 1, True),
        (Seam.PREFILL, 2, False),  # a model's own turn is one text: two would be read as one
        (Seam.EXACT, 1, True),
        (Seam.EXACT, 2, True),
    ],
)
async def test_several_answers_are_gone_on_with_exactly_or_not_at_all(
    seam: Seam, answers: int, goes_on: bool
) -> None:
    trial = Try([])
    request = trial.request
    request.sampling = replace(request.sampling, n=answers)
    request.seam = seam
    request.channel.send(TokenChunk("one "), EPOCH)
    await request.channel.receive()

    outcome = after_failure(
        request, UpstreamTruncatedError("cut"), attempts=1, gates=trial.gates, now=0.0
    )

    assert isinstance(outcome, TryAgain if goes_on else Interrupted)
    assert (request.resume is not None) == goes_on
    trial.permit.release()
