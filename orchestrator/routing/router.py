"""Sends requests on their way: finds the route, sets the deadline, asks who may be able to serve.

Whatever happens, the request's channel gets its ending here or on the journey if it gets it nowhere
else.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice

from orchestrator import metrics
from orchestrator.accounts import Accounts
from orchestrator.errors import (
    DeadlineExceededError,
    EngineDrainingError,
    InternalError,
    ModelNotFoundError,
    OrchestratorError,
    RequestError,
    describe,
    one_line,
)
from orchestrator.events import Failed, Finished
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.explain import story
from orchestrator.routing.journey import Journey
from orchestrator.routing.route import Route
from orchestrator.routing.strategy import in_order
from orchestrator.routing.table import Table

logger = logging.getLogger(__name__)

MAX_SHOWN = 100
"""Characters of a caller's text that an error repeats."""
MAX_NAMES = 20
"""Routes that an error lists."""


class Router:
    """Brings requests to deployments; all calls belong on the engines' loop.

    Args:
        routes: By name.
        chance: Of the strategies.
        accounts: Enters what each request costs; None if nobody asks.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        chance: random.Random,
        accounts: Accounts | None = None,
    ) -> None:
        self._table = Table(routes)
        self._chance = chance
        self._accounts = accounts
        self._inspections: dict[asyncio.Task[None], PriorityRequest] = {}

    @property
    def routes(self) -> Mapping[str, Route]:
        """All routes by name."""
        return self._table.routes

    def replace(self, routes: Mapping[str, Route]) -> Table:
        """Sends whoever comes from now on by other routes.

        Returns:
            The routes that held until now, by which those who came before go to their ends.
        """
        before, self._table = self._table, Table(routes)
        return before

    def route(self, name: str) -> Route:
        """Finds a route.

        Raises:
            ModelNotFoundError: There is none of that name.
        """
        routes = self._table.routes
        route = routes.get(name)
        if route is None:
            # comparing costs the product of both lengths, and a caller chooses one of them
            near = get_close_matches(name[:MAX_SHOWN], routes, n=1)
            some = ", ".join(islice(routes, MAX_NAMES))
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

    def enter_repeat(self, request: PriorityRequest) -> None:
        """Enters a request that gets another one's answer, and so goes nowhere."""
        request.accepted_at = asyncio.get_running_loop().time()
        if self._accounts is not None:
            self._accounts.open_repeat(request)

    def _send_on_its_way(self, request: PriorityRequest) -> None:
        route = self.route(request.model)
        request.accepted_at = asyncio.get_running_loop().time()
        request.deadline = request.accepted_at + (request.timeout or route.timeout)
        _arm_deadline(request)
        _observe_ending(request, metrics.for_route(route.name), self._table)
        if self._accounts is not None:
            self._accounts.open(request, [deployment.name for deployment in route.deployments])
        able, waiting = _inspect(route, request)
        if waiting:
            self._finish_inspection(request, route, able, waiting)
        else:
            self._begin(request, route, able)

    def _begin(self, request: PriorityRequest, route: Route, able: list[Deployment]) -> None:
        if route.policy.measures:
            _measure(request, able)
        ahead = in_order(route.policy, able, self._chance)
        Journey(request, route.policy, ahead, route.hedging).go_on()

    def _finish_inspection(
        self,
        request: PriorityRequest,
        route: Route,
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
                self._begin(request, route, able)
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


def _uninspected(cause: BaseException) -> InternalError:
    logger.error("a request could not be inspected", exc_info=cause)
    # its text is foreign and may hold a prompt: it stays in the log and in __cause__
    name = type(cause).__name__
    error = InternalError(f"the inspection of the request raised {name}; the log tells more")
    error.__cause__ = cause
    return error


def _measure(request: PriorityRequest, deployments: Sequence[Deployment]) -> None:
    """Tells each deployment how long its attempts take to the first token, as it comes."""
    loop = asyncio.get_running_loop()
    known = {deployment.name: deployment.latency for deployment in deployments}

    def observe(record: AttemptRecord) -> None:
        now = loop.time()
        known[record.deployment].observe(now - record.started_at, now)

    request.on_first_token = observe


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


def _observe_ending(request: PriorityRequest, meters: metrics.RouteMeters, table: Table) -> None:
    loop = asyncio.get_running_loop()
    table.enter()

    def observe() -> None:
        table.leave()
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
            ending.error.attempts = len(request.attempts)
            meters.failed(seconds, ending.error.code)
            logger.info(
                "request %s to %s failed after %.3f s and %d attempts: %s (%s)",
                one_line(request.request_id),
                request.model,
                seconds,
                len(request.attempts),
                one_line(describe(ending.error)),
                story(request),
            )

    request.channel.watch(observe)
