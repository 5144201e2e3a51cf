"""What becomes of a request that was made before, by the same caller and in the same words.

    Idempotency-Key   a repeat while it runs joins it, a repeat within the window gets the answer
                      that is kept, another body under the same key is refused
    cache (opt-in)    the same deterministic request joins the one that runs, unless that one has
                      less time or waits behind others, or is answered from what is kept;
                      `x-orchestrator-cache` says hit or miss

Callers never share: a key and an answer belong to who asked. Failures are kept for nobody.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator import metrics
from orchestrator.channel import HELD_CAPACITY_BYTES, Channel
from orchestrator.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    RequestCanceledError,
    RequestError,
)
from orchestrator.events import Failed, Finished
from orchestrator.gateway.api import Call
from orchestrator.gateway.repeats.asked import Asked, fingerprint_of
from orchestrator.gateway.repeats.memory import Answer, Memory, is_answer, packed, unpacked
from orchestrator.gateway.repeats.production import ONLY_EPOCH, Production
from orchestrator.gateway.repeats.store import AnswerStore
from orchestrator.gateway.visit import Visit
from orchestrator.request import PriorityRequest

KEY_HEADER = "idempotency-key"
MAX_KEY = 255
DIGEST_BYTES = hashlib.sha256().digest_size

Submit = Callable[[PriorityRequest], None]
Enter = Callable[[PriorityRequest], None]
"""Enters a request into the accounts that gets another one's answer; before its channel ends."""


def enter_nothing(_: PriorityRequest) -> None:
    """Enters no request anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where answers are kept."""

    memory: Memory
    store: AnswerStore | None = None
    """Asked where the memory has none."""
    every: bool = False
    """Whether requests are answered from it whose answer is left to chance."""
    most: int
    """Bytes of one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where answers under Idempotency-Keys are kept."""

    memory: Memory
    store: AnswerStore | None = None
    """Asked where the memory has none, as after a restart."""
    most: int
    """Bytes of one answer."""

    async def find(self, place: bytes) -> bytes | None:
        """Finds an answer in the file, of which the memory has none."""
        if self.store is None:
            return None
        return await self.store.get(place, lambda content: is_answer(content[DIGEST_BYTES:]))

    def put(self, place: bytes, content: bytes) -> None:
        """Keeps an answer."""
        self.memory.put(place, content)
        if self.store is not None:
            self.store.put_later(place, content)


@dataclass(slots=True, eq=False)
class _Keyed:
    """What is known under an Idempotency-Key; `production` is None once it has ended."""

    fingerprint: bytes
    production: Production | None


class Repeats:
    """All that is kept, over all APIs of the gateway.

    Args:
        submit: Sends a request on its way.
        enter: Enters those that are not sent.
        kept: Answers under Idempotency-Keys; None if nobody wants them.
        cache: The response cache; None if there is none.
    """

    def __init__(
        self,
        submit: Submit,
        *,
        enter: Enter = enter_nothing,
        kept: Kept | None,
        cache: Cache | None,
    ) -> None:
        self._submit = submit
        self._enter = enter
        self._kept = kept
        self._cache = cache
        self._running: dict[bytes, _Keyed] = {}
        self._made: dict[bytes, Production] = {}

    async def aclose(self) -> None:
        """Waits until all that was made is kept; called once every request has its ending."""
        keyed = [known.production for known in self._running.values()]
        for production in [*keyed, *self._made.values()]:
            if production is not None:
                await production.over()
        for keeper in (self._kept, self._cache):
            if keeper is not None and keeper.store is not None:
                await keeper.store.settled()

    def widen(self, visit: Visit, call: Call) -> bool:
        """Tells whether `send` is for that call; then its reader may be given all at once."""
        keyed = self._kept is not None and visit.header(KEY_HEADER) is not None
        if not keyed and not self._caches(call.request):
            return False
        request = call.request
        request.channel = Channel(held=request.channel.held, capacity_bytes=HELD_CAPACITY_BYTES)
        return True

    async def send(self, visit: Visit, call: Call, asked: Asked) -> None:
        """Has the call answered: from what is kept, by what runs, or by a request of its own.

        Whatever happens to it is told by its channel.

        Raises:
            CancelledError: The server has ended the exchange.
        """
        key = visit.header(KEY_HEADER)
        try:
            if self._kept is not None and key is not None:
                await self._send_keyed(self._kept, key, visit, call, asked)
            elif self._cache is not None:
                await self._send_cached(self._cache, visit, call, asked)
        except RequestError as error:
            call.request.channel.end(Failed(error))
        except asyncio.CancelledError:
            call.request.channel.end(Failed(RequestCanceledError("the client went away")))
            raise

    async def _send_keyed(
        self, kept: Kept, key: str, visit: Visit, call: Call, asked: Asked
    ) -> None:
        if not 0 < len(key) <= MAX_KEY or not key.isprintable():
            raise InvalidRequestError(
                f"the header {KEY_HEADER} must have 1 to {MAX_KEY} printable characters",
                param=KEY_HEADER,
            )
        place = _digest(call.request.caller, visit.path, key)
        fingerprint = await fingerprint_of(asked.body)
        running = self._running.get(place)
        content = kept.memory.get(place) if running is None else None
        if running is None and content is None and kept.store is not None:
            content = await kept.find(place)
            running = self._running.get(place)  # it may have begun meanwhile, or even ended
            if running is not None:
                content = None
            elif content is None:
                content = kept.memory.get(place)
            else:
                kept.memory.put(place, content)
        known = running.fingerprint if running else content[:DIGEST_BYTES] if content else None
        if known is not None and known != fingerprint:
            raise IdempotencyConflictError(
                "this Idempotency-Key was used for another request", param=KEY_HEADER
            )
        if content is not None:
            visit.say("idempotent-replayed", "true")
            metrics.REPEATS.labels("idempotency", "hit").inc()
            self._enter(call.request)
            _tell(call.request.channel, unpacked(content[DIGEST_BYTES:]))
            return
        if running is not None and running.production and running.production.joinable:
            visit.say("idempotent-replayed", "true")
            metrics.REPEATS.labels("idempotency", "joined").inc()
            self._enter(call.request)
            running.production.join(call.request)
            return
        if running is not None:
            raise IdempotencyConflictError(
                "the request with this Idempotency-Key is still running, and its answer is too"
                " long to be kept",
                param=KEY_HEADER,
            )
        metrics.REPEATS.labels("idempotency", "miss").inc()
        production = Production(call.request, goes_on=True, most=kept.most)
        self._running[place] = _Keyed(fingerprint, production)
        call.request.made_on = production.request.channel

        def ended() -> None:
            del self._running[place]
            if isinstance(production.ending, Finished) and production.joinable:
                kept.put(place, fingerprint + packed((production.chunks, production.ending)))

        self._produce(production, call.request, ended)

    async def _send_cached(self, cache: Cache, visit: Visit, call: Call, asked: Asked) -> None:
        place = _digest(call.request.caller, visit.path, await asked.canonical())
        content = cache.memory.get(place)
        if content is None and cache.store is not None and place not in self._made:
            content = await cache.store.get(place, is_answer)
            if content is None:
                content = cache.memory.get(place)  # it may have been made meanwhile
            else:
                cache.memory.put(place, content)
        if content is not None:
            self._hit(visit, "hit")
            self._enter(call.request)
            _tell(call.request.channel, unpacked(content))
            return
        running = self._made.get(place)
        if running is not None and running.joinable and running.suits(call.request):
            self._hit(visit, "joined")
            self._enter(call.request)
            running.join(call.request)
            return
        visit.say("x-orchestrator-cache", "miss")
        metrics.REPEATS.labels("cache", "miss").inc()
        production = Production(call.request, goes_on=False, most=cache.most)
        self._made[place] = production

        def ended() -> None:
            if self._made.get(place) is production:
                del self._made[place]
            if isinstance(production.ending, Finished) and production.joinable:
                content = packed((production.chunks, production.ending))
                cache.memory.put(place, content)
                if cache.store is not None:
                    cache.store.put_later(place, content)

        self._produce(production, call.request, ended)

    def _produce(
        self, production: Production, asked: PriorityRequest, ended: Callable[[], None]
    ) -> None:
        production.attach(asked.channel)
        production.start(ended)
        self._submit(production.request)

    def _hit(self, visit: Visit, how: str) -> None:
        visit.say("x-orchestrator-cache", "hit")
        metrics.REPEATS.labels("cache", how).inc()

    def _caches(self, request: PriorityRequest) -> bool:
        if self._cache is None:
            return False
        sampling = request.sampling
        return self._cache.every or sampling.temperature == 0 or sampling.seed is not None


def _tell(channel: Channel, answer: Answer) -> None:
    chunks, ending = answer
    channel.begin(ONLY_EPOCH)
    for chunk in chunks:
        channel.send(chunk, ONLY_EPOCH)
    channel.end(ending)


def _digest(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        piece = part.encode() if isinstance(part, str) else part
        digest.update(len(piece).to_bytes(8, "big"))  # so that no two lists of parts are one text
        digest.update(piece)
    return digest.digest()
