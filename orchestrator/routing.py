"""Which deployment serves a request, and what follows when one fails.

A route is an order of deployments. Those that are ready come first, in the configured order; the
others are tried after them, for one that is about to be back is better than none. A deployment
that gives a request up hands it back here; as long as nothing was delivered the next one gets it,
if the error is of a kind that another deployment may not share. No deployment is tried twice.
Whatever happens, the request's channel gets its ending here if it gets it nowhere else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from orchestrator import metrics
from orchestrator.errors import (
    CircuitOpenError,
    DeadlineExceededError,
    EngineDrainingError,
    EngineError,
    EngineUnhealthyError,
    InternalError,
    ModelNotFoundError,
    OrchestratorError,
    QueueFullError,
    RequestError,
    describe,
    one_line,
)
from orchestrator.events import Failed, Finished
from orchestrator.inflight import Inflight
from orchestrator.request import PriorityRequest

logger = logging.getLogger(__name__)

MAX_SHOWN = 100
"""Characters of a caller's text that an error repeats."""
MAX_NAMES = 20
"""Routes that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deployment:
    """What routing knows of a deployment."""

    name: str
    inflight: Inflight
    inspect: Callable[[PriorityRequest], Awaitable[None] | None]
    """Refuses, by raising a `RequestError`, what this deployment can never serve."""
    ready: Callable[[], bool]
    """Whether a request sent now would be served; never false because of load."""


@dataclass(frozen=True, slots=True)
class Route:
    """A public model name."""

    name: str
    deployments: Sequence[Deployment]
    timeout: float = 600.0
    """Seconds that a request has, if it doesn't say so itself."""

    @property
    def ready(self) -> bool:
        """Whether at least one deployment can serve."""
        return any(deployment.ready() for deployment in self.deployments)


class Router:
    """Brings requests to deployments; all calls belong on the engines' loop.

    Args:
        routes: By name.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._inspections: dict[asyncio.Task[None], PriorityRequest] = {}

    @property
    def routes(self) -> Mapping[str, Route]:
        """All routes by name."""
        return self._routes

    def route(self, name: str) -> Route:
        """Finds a route.

        Raises:
            ModelNotFoundError: There is none of that name.
        """
        route = self._routes.get(name)
        if route is None:
            # comparing costs the product of both lengths, and a caller chooses one of them
            near = get_close_matches(name[:MAX_SHOWN], self._routes, n=1)
            some = ", ".join(islice(self._routes, MAX_NAMES))
            hint = f"did you mean {near[0]!r}?" if near else f"there are {some}"
            raise ModelNotFoundError(
                f"no model is called {name[:MAX_SHOWN]!r}; {hint}", param="model"
            )
        return route

    def stop(self) -> None:
        """Ends the requests that are still being inspected, of which no deployment knows."""
        for request in list(self._inspections.values()):
            request.channel.end(
                Failed(EngineDrainingError("the service is stopping; use another instance"))
            )

    def submit(self, request: PriorityRequest) -> None:
        """Sends a request on its way; from here on its channel tells all that happens to it."""
        try:
            self._send_on_its_way(request)
        except RequestError as error:
            request.channel.end(Failed(error))
        except Exception as error:  # noqa: BLE001 - the outermost frame of a submitted request
            request.channel.end(Failed(_uninspected(error)))

    def _send_on_its_way(self, request: PriorityRequest) -> None:
        route = self.route(request.model)
        request.accepted_at = asyncio.get_running_loop().time()
        request.deadline = request.accepted_at + (request.timeout or route.timeout)
        _arm_deadline(request)
        _observe_ending(request, metrics.for_route(route.name))
        able, waiting = _inspect(route, request)
        if waiting:
            self._finish_inspection(request, able, waiting)
        else:
            _Journey(request, able).go_on()

    def _finish_inspection(
        self,
        request: PriorityRequest,
        able: list[Deployment],
        waiting: dict[Deployment, Awaitable[None]],
    ) -> None:
        # all at once: one that nobody came to await would be a lost coroutine
        asked = {
            deployment: asyncio.ensure_future(inspection)
            for deployment, inspection in waiting.items()
        }
        for answer in asked.values():
            answer.add_done_callback(_heard)

        async def finish() -> None:
            refusals: list[RequestError] = []
            for deployment, answer in asked.items():
                try:
                    await answer
                except RequestError as error:
                    able.remove(deployment)
                    refusals.append(error)
                except OrchestratorError as error:  # it couldn't tell: the attempt will
                    logger.info("%s could not inspect: %s", deployment.name, describe(error))
            if able:
                _Journey(request, able).go_on()
            else:
                request.channel.end(Failed(refusals[0]))

        def over(task: asyncio.Task[None]) -> None:
            del self._inspections[task]
            for answer in asked.values():
                answer.cancel()
            error = None if task.cancelled() else task.exception()
            if error is not None:
                request.channel.end(Failed(_uninspected(error)))

        task = asyncio.get_running_loop().create_task(finish())
        self._inspections[task] = request
        task.add_done_callback(over)
        # a caller that goes away, or a deadline, ends the inspection too
        request.channel.watch(lambda: _cancel(task))


class _Journey:
    """One request's way over the deployments of its route."""

    __slots__ = ("_ahead", "_errors", "_request")

    def __init__(self, request: PriorityRequest, able: Sequence[Deployment]) -> None:
        self._request = request
        self._ahead = iter(sorted(able, key=_not_ready) if len(able) > 1 else able)
        self._errors: list[OrchestratorError] = []

    def go_on(self) -> None:
        """Gives the request to the next deployment that takes it, or ends it."""
        channel = self._request.channel
        for deployment in self._ahead:
            if channel.ending is not None:
                return
            try:
                deployment.inflight.accept(
                    self._request, self._given_up, now=asyncio.get_running_loop().time()
                )
            except (EngineError, QueueFullError) as refusal:
                self._errors.append(refusal)
            else:
                return
        channel.end(Failed(self._most_telling()))

    def _given_up(self, error: OrchestratorError) -> None:
        request = self._request
        self._errors.append(error)
        tried = bool(request.attempts)
        if (
            not error.fails_over
            or not request.channel.retract()
            or (tried and not request.idempotent)
        ):
            request.channel.end(Failed(error))
            return
        self.go_on()

    def _most_telling(self) -> OrchestratorError:
        """What an upstream or worker said counts more than a refusal of our own."""
        if self._request.first_error is not None:  # an attempt failed before anybody refused
            return self._request.first_error
        for error in self._errors:
            if error.scope in {"upstream", "worker"} and not isinstance(error, CircuitOpenError):
                return error
        if self._request.attempts:  # a poison that ended an attempt tells more than who refused
            for error in self._errors:
                if isinstance(error, EngineUnhealthyError):
                    return error
        return self._errors[0] if self._errors else InternalError("the route has no deployment")


def _not_ready(deployment: Deployment) -> bool:
    return not deployment.ready()


def _uninspected(cause: BaseException) -> InternalError:
    logger.error("a request could not be inspected", exc_info=cause)
    # its text is foreign and may hold a prompt: it stays in the log and in __cause__
    name = type(cause).__name__
    error = InternalError(f"the inspection of the request raised {name}; the log tells more")
    error.__cause__ = cause
    return error


def _heard(answer: asyncio.Future[None]) -> None:
    # what a request no longer waits for may fail without a word
    if not answer.cancelled():
        answer.exception()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _inspect(
    route: Route, request: PriorityRequest
) -> tuple[list[Deployment], dict[Deployment, Awaitable[None]]]:
    """Returns who may be able to serve the request, and whose answer must be waited for."""
    able: list[Deployment] = []
    waiting: dict[Deployment, Awaitable[None]] = {}
    refusals: list[RequestError] = []
    for deployment in route.deployments:
        try:
            inspection = deployment.inspect(request)
        except RequestError as error:
            refusals.append(error)
            continue
        able.append(deployment)
        if inspection is not None:
            waiting[deployment] = inspection
    if not able and refusals:
        raise refusals[0]
    return able, waiting


def _arm_deadline(request: PriorityRequest) -> None:
    """One timer covers queue, permits, backoff, attempts and failover."""

    def expire() -> None:
        error = DeadlineExceededError(
            f"the deadline passed after {request.deadline - request.accepted_at:g} s"
            f" and {len(request.attempts)} attempts"
            + (f"; first error: {describe(request.first_error)}" if request.first_error else "")
        )
        error.__cause__ = request.first_error
        request.channel.end(Failed(error))

    timer = asyncio.get_running_loop().call_at(request.deadline, expire)
    request.channel.watch(timer.cancel)


def _observe_ending(request: PriorityRequest, meters: metrics.RouteMeters) -> None:
    loop = asyncio.get_running_loop()

    def observe() -> None:
        seconds = loop.time() - request.accepted_at
        ending = request.channel.ending
        first = next((a.first_token_at for a in request.attempts if a.first_token_at), None)
        if first is not None:
            meters.first_token(first - request.accepted_at)
        if isinstance(ending, Finished):
            usage = ending.usage
            meters.finished(
                seconds,
                usage.prompt_tokens if usage else 0,
                usage.completion_tokens if usage else 0,
            )
        elif isinstance(ending, Failed):
            meters.failed(seconds, ending.error.code)
            logger.info(
                "request %s to %s failed after %.3f s and %d attempts: %s",
                one_line(request.request_id),
                request.model,
                seconds,
                len(request.attempts),
                one_line(describe(ending.error)),
            )

    request.channel.watch(observe)
