"""The actor that owns a deployment's key: it fetches, renews and rotates it.

1. The mailbox is the single flight: of eight slots that were refused with one key, the first
asks for the next one, and the others find it when their turn comes.
2. A key that can't be renewed stays: it may be good still. Whoever asked gets the reason.
3. A renewal that brought nothing new isn't tried again for a moment, so that a key that the
provider has withdrawn for good doesn't cost a fetch per request.
4. A key that has an end is replaced shortly before it, one whose file changes within a second.
If that fails it is tried again, less and less often.
"""

import asyncio
import logging
from typing import assert_never

import pykka
from typing_extensions import override

from orchestrator.actors.messages import Fetch, Look, Renew, SessionMessage
from orchestrator.actors.runtime import LoopActor, OnDeath, ask, tell
from orchestrator.errors import OrchestratorError, UpstreamAuthenticationError, describe
from orchestrator.runners.remote.credentials import Credential, Key

logger = logging.getLogger(__name__)

FETCH_SECONDS = 10.0
WATCH_SECONDS = 1.0
"""How often a file is looked at."""
QUIET_SECONDS = 1.0
"""How long a fruitless renewal answers for those that follow it."""
MAX_BACKOFF = 60.0


class Session(LoopActor):
    """Renews one credential.

    Args:
        deployment: Whose it is, for the log.
        credential: Read by the slots, written here alone.
        on_death: Told when the session ends, with the cause.
        patience: Seconds that the source may take to bring a key.
    """

    def __init__(
        self,
        deployment: str,
        credential: Credential,
        *,
        on_death: OnDeath,
        patience: float = FETCH_SECONDS,
    ) -> None:
        super().__init__(on_death=on_death)
        self._patience = patience
        self._deployment = deployment
        self._credential = credential
        self._source = credential.source
        self._timers: dict[type[Fetch | Look], asyncio.TimerHandle] = {}
        self._failures = 0
        self._fruitless: OrchestratorError | None = None
        self._quiet_until = 0.0
        credential.renewer = self._renewed

    @override
    def on_start(self) -> None:
        """Fetches the first key."""
        tell(self.actor_ref, Fetch())
        if self._source.watched:
            self._later(WATCH_SECONDS, Look())

    @override
    async def on_receive(self, message: SessionMessage) -> None:
        """Handles one message."""
        match message:
            case Renew(refused):
                await self._renew(refused)
            case Fetch():
                await self._refresh()
            case Look():
                self._later(WATCH_SECONDS, message)
                if self._source.changed():
                    await self._refresh()
            case _:
                assert_never(message)

    @override
    async def release(self) -> None:
        """Leaves no timer behind."""
        for timer in self._timers.values():
            timer.cancel()

    async def _renewed(self, refused: Key | None) -> None:
        """What a refused slot awaits; see `credentials.Renewer`.

        Raises:
            UpstreamAuthenticationError: The session is gone, or hangs.
            OrchestratorError: There is no other key.
        """
        try:
            # a fetch that runs already comes before this one
            await ask(self.actor_ref, Renew(refused), within=3 * self._patience)
        except (pykka.ActorDeadError, TimeoutError):
            raise UpstreamAuthenticationError(
                f"{self._deployment} has nobody to fetch its key from {self._source.name}"
            ) from None

    async def _renew(self, refused: Key | None) -> None:
        """Answers a slot: with another key in place, or with why there is none."""
        held = self._credential.key
        if held is not None and (refused is None or held.secret != refused.secret):
            return
        now = asyncio.get_running_loop().time()
        if self._fruitless is None or now >= self._quiet_until:
            await self._fetch()
            fetched = self._credential.key
            if self._fruitless is None and held and fetched and held.secret == fetched.secret:
                self._fail(
                    UpstreamAuthenticationError(
                        f"{self._source.name} still has the key that was refused"
                    )
                )
        if self._fruitless is not None:
            raise self._fruitless

    async def _refresh(self) -> None:
        """Fetches unasked; what comes of it is for the log."""
        await self._fetch()
        if self._fruitless is None:
            return
        delay = min(2.0 ** min(self._failures - 1, 16), MAX_BACKOFF)
        logger.warning(
            "the key of %s stays as it is, next try in %g s: %s",
            self._deployment,
            delay,
            describe(self._fruitless),
            extra={"deployment": self._deployment},
        )
        self._later(delay, Fetch())

    async def _fetch(self) -> None:
        """Puts the source's key into its place, or notes why it couldn't."""
        try:
            async with asyncio.timeout(self._patience):
                key = await self._source.fetch()
        except TimeoutError:
            # from None: the chain of a timeout leads to its own CancelledError, which tells nothing
            self._fail(
                UpstreamAuthenticationError(
                    f"{self._source.name} brought no key within {self._patience:g} s"
                )
            )
        except OrchestratorError as error:
            self._fail(error)
        else:
            self._take(key)

    def _take(self, key: Key) -> None:
        held = self._credential.key
        if held is not None and held.secret != key.secret:
            logger.info(
                "%s has a new key from %s",
                self._deployment,
                self._source.name,
                extra={"deployment": self._deployment},
            )
        self._credential.key = key
        if held is not None and held.secret != key.secret and self._credential.on_change:
            self._credential.on_change()
        self._fruitless, self._failures = None, 0
        now = asyncio.get_running_loop().time()
        self._later(key.renew_at - now, Fetch())

    def _fail(self, error: OrchestratorError) -> None:
        self._failures += 1
        self._fruitless = error
        self._quiet_until = asyncio.get_running_loop().time() + QUIET_SECONDS

    def _later(self, delay: float, message: Fetch | Look) -> None:
        """Tells itself something later, in place of the same that was to come."""
        kind = type(message)
        before = self._timers.pop(kind, None)
        if before is not None:
            before.cancel()
        if delay < float("inf"):
            loop = asyncio.get_running_loop()
            self._timers[kind] = loop.call_later(max(0.0, delay), tell, self.actor_ref, message)
