"""The gateway: a FastAPI application whose hot path passes FastAPI by.

What a model answers goes through raw ASGI callables, before any routing; the models' list, the
probes and the metrics are ordinary endpoints. Every response has its request id, every error the
shape of its API, which is OpenAI's unless the path says otherwise.
"""

import asyncio
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from orchestrator import metrics
from orchestrator.callers.caller import Caller
from orchestrator.callers.door import Door
from orchestrator.errors import OrchestratorError
from orchestrator.gateway.admin import ADMIN, Admin, ReloadNow
from orchestrator.gateway.anthropic.counting import COUNT_TOKENS
from orchestrator.gateway.anthropic.messages import MESSAGES
from orchestrator.gateway.body import MAX_BODIES, BodyRoom
from orchestrator.gateway.chat import CHAT
from orchestrator.gateway.completions import COMPLETIONS
from orchestrator.gateway.document import add_posts, failures
from orchestrator.gateway.exchange import KEEP_ALIVE, LINGER, Exchange
from orchestrator.gateway.failure import failure_object, retry_after, send_failure, status_of
from orchestrator.gateway.framework import HANDLERS, REQUEST_ID, as_text
from orchestrator.gateway.health import Liveness, Readiness, liveness, readiness
from orchestrator.gateway.repeats.repeats import Repeats
from orchestrator.gateway.responses.responses import RESPONSES
from orchestrator.gateway.resume import RESUME_MEMORY, Resumptions
from orchestrator.gateway.shape import shaped
from orchestrator.gateway.visit import Visit
from orchestrator.gateway.works import CLASSIFIES, EMBEDDINGS, RERANKS
from orchestrator.wiring import System

logger = logging.getLogger(__name__)

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, *RERANKS, *CLASSIFIES)
"""All that is posted to."""
OPEN_PATHS = ("/livez", "/readyz")
"""What platforms ask, who have no key."""
METRICS_PATH = "/metrics"


class Model(BaseModel):
    """A route, as OpenAI lists models."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "orchestrator"


class Models(BaseModel):
    """All routes."""

    object: str = "list"
    data: list[Model]


class Gateway(FastAPI):
    """The application; all of it runs on the engines' loop.

    Args:
        system: What serves the requests.
        max_body: Bytes that a request may have.
        access_log: Whether each request is a line in the log.
        linger: Seconds from a request's end after which a caller who doesn't read is cut off.
        keep_alive: Seconds of silence in a stream after which a comment goes out.
        max_bodies: Bytes of all large bodies together.
        resume_window: Seconds for which a client may stay away from its stream; 0 is none.
        resume_memory: Bytes of all streams that a client may come back to.
        door: Lets callers in; None lets everybody in.
        ledger: The usage ledger, for administrators; None if there is none.
        repeats: What is kept for requests that come again; None if nothing is.
        explained: Whether responses tell their attempts; None leaves it to each caller.
        reload: Reads the configuration anew, for administrators; None if it can't be.
    """

    def __init__(
        self,
        system: System,
        *,
        max_body: int,
        access_log: bool = True,
        linger: float = LINGER,
        keep_alive: float = KEEP_ALIVE,
        max_bodies: int = MAX_BODIES,
        resume_window: float = 0,
        resume_memory: int = RESUME_MEMORY,
        door: Door | None = None,
        ledger: Path | None = None,
        repeats: Repeats | None = None,
        explained: bool | None = None,
        reload: ReloadNow | None = None,
    ) -> None:
        super().__init__(
            title="orchestrator",
            version=version("orchestrator"),
            docs_url=None,  # the page would load its scripts from elsewhere
            redoc_url=None,
            redirect_slashes=False,  # a redirected POST loses its body with some clients
            exception_handlers=HANDLERS,
        )
        self._system = system
        self._access_log = access_log
        self._draining = False
        self._door = door
        resumptions = Resumptions(resume_window, resume_memory) if resume_window else None
        reading, room = asyncio.Lock(), BodyRoom(max_bodies)
        self._exchanges = {
            api.path: Exchange(
                api,
                system.router,
                max_body=max_body,
                access_log=access_log,
                linger=linger,
                keep_alive=keep_alive,
                resumptions=resumptions,
                door=door,
                repeats=repeats,
                reading=reading,
                explained=explained,
                room=room,
                local=door is None or door.is_local,
            )
            for api in APIS
        }
        for path, exchange in self._exchanges.items():
            # never reached by POST; makes any other method on that path a 405
            self.router.routes.append(Route(path, exchange, methods=["POST"]))
        self.get("/v1/models", responses=failures(401))(self._list_models)
        self.get("/v1/models/{model:path}", responses=failures(401, 403, 404))(self._show_model)
        self.get("/livez", responses={503: {"model": Liveness}})(self._livez)
        self.get("/readyz", responses={503: {"model": Readiness}} | failures(404))(self._readyz)
        self.head("/livez", include_in_schema=False)(self._livez)
        self.head("/readyz", include_in_schema=False)(self._readyz)
        self.get(METRICS_PATH, responses=failures(401, 403), response_class=PlainTextResponse)(
            self._metrics
        )
        if door is not None and door.has_administrators:
            Admin(system, door, ledger, reload).add_to(self)

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
        elif scope["method"] == "POST" and (exchange := self._exchanges.get(scope["path"])):
            await exchange(scope, receive, send)
        else:
            await self._serve_rest(scope, receive, send)

    @override
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            add_posts(super().openapi(), APIS, list(self._system.router.routes))
        return super().openapi()

    def forget_document(self) -> None:
        """Other routes hold: the published document is made anew when it is asked for."""
        self.openapi_schema = None

    def drain(self) -> None:
        """From now on nothing new is taken, and no route is ready."""
        self._draining = True
        for exchange in self._exchanges.values():
            exchange.draining = True

    async def _serve_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = Visit.of(scope)
        scope[REQUEST_ID] = visit.request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                message["headers"] = [*message["headers"], *visit.response_headers]
            await send(message)

        try:
            if self._door is not None and visit.path not in OPEN_PATHS:
                scope["caller"] = await _let_in(self._door, visit)
            await super().__call__(scope, receive, send_with_id)
        except OrchestratorError as error:  # not let in; what is raised behind has been answered
            visit.status = error.status_code
            told = shaped(visit.path, failure_object(error), status_of(error), visit.request_id)
            await send_failure(send, error, visit.response_headers, told)
        except Exception:  # outermost frame; the handler below has answered
            logger.exception("request %s broke the gateway", visit.request_id)
        finally:
            if self._access_log:
                visit.log()

    async def _list_models(self, request: Request) -> Models:
        """All models that a request may name."""
        caller: Caller | None = request.scope.get("caller")
        names = self._system.router.routes
        return Models(
            data=[Model(id=name) for name in names if caller is None or caller.may_use(name)]
        )

    async def _show_model(self, request: Request, model: str) -> Model:
        """One model."""
        caller: Caller | None = request.scope.get("caller")
        if caller is not None:
            caller.check(model)
        return Model(id=self._system.router.route(model).name)

    async def _livez(self, response: Response) -> Liveness:
        """Whether this process can help itself; if not, it should be replaced."""
        answer = liveness(self._system)
        response.status_code = 200 if answer.live else 503
        return answer

    async def _readyz(self, response: Response, route: str | None = None) -> Readiness:
        """Whether requests are served, by any route or by the one that is named."""
        page, wait = readiness(self._system, route=route, draining=self._draining)
        if not page.ready:
            response.status_code = 503
            response.headers.update(as_text(retry_after(wait)))
        return page

    async def _metrics(self) -> Response:
        """All metrics in Prometheus' text format."""
        return Response(metrics.exposition(), media_type=EXPOSITION)


async def _let_in(door: Door, visit: Visit) -> Caller | None:
    if visit.path == METRICS_PATH or visit.path.startswith(ADMIN):
        await door.enter_as_administrator(visit.headers, metrics=visit.path == METRICS_PATH)
        return None
    return await door.enter(visit.headers)
