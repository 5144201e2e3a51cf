"""The world behind the runner seam: providers and local models that fail as the plan says.

What is real ends here. Each attempt reads its fate from its caller's dice, by its number, and tells
the journal what reaches the provider and what it does to it.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.simulation.host import Host
from orchestrator.chaos.simulation.plan import Caller, Dice, Shape, Trouble, Weather
from orchestrator.chaos.simulation.quota import TRUE_TELLINGS, Bucket, hinted
from orchestrator.errors import (
    InvalidRequestError,
    UpstreamAuthenticationError,
    UpstreamConnectError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTruncatedError,
    WorkerHungError,
    WorkerStartError,
    describe,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.lease import Lease, Step
from orchestrator.standing import Standing

CONNECT_SECONDS = 0.005
GATHER_ROUNDS = 120
HUNG = "no progress within"
SLOW_PROVIDER = "the provider took longer than"
PAUSED = "the provider asked for a pause"
HEADS = 6
"""Of an answer with headers there are so many speeds, so that answers overtake each other."""
REVOKED = "the provider refused the key"
UNFINISHED = "without a finish reason"
BEFORE_A_TOKEN = frozenset(
    {
        Trouble.RATE_LIMITED,
        Trouble.SERVER_ERROR,
        Trouble.BAD_REQUEST,
        Trouble.BUG,
        Trouble.HANG_FIRST,
        Trouble.CRASH_FIRST,
    }
)
MIDWAY = frozenset(
    {Trouble.HANG_MID, Trouble.CUT, Trouble.CLEAN_CUT, Trouble.CRASH_MID, Trouble.ZOMBIE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a key's limit was when a request had come with it."""

    left: bool = True
    """Whether there was something left for it."""
    standing: Standing | None = None
    """What its answer says of it."""
    true: bool = False
    """Whether that is so."""


class Provider:
    """All that one deployment's runners share.

    Args:
        shape: The deployment.
        callers: By name; their dice decide.
        journal: Told what happens at the provider.
        weather: What goes wrong at which time.
        partners: All deployments that send the same keys, this one included.
        buckets: What is left of each key's limit.
    """

    def __init__(
        self,
        shape: Shape,
        callers: Mapping[str, Caller],
        journal: Journal,
        weather: Sequence[Weather] = (),
        partners: Sequence[str] = (),
        buckets: Sequence[Bucket] = (),
    ) -> None:
        self.shape = shape
        self.journal = journal
        self.healed = False
        """From then on everything goes well."""
        self.hosts: list[Host] = []
        """Those that live."""
        self.starts = 0
        self.open_streams = 0
        self.most_open = 0
        """The most streams at once since it was set to 0."""
        self.gather = 0
        """So many streams must be open before one goes on, or the wait for them is over."""
        self._callers = callers
        self._weather = [one for one in weather if one.deployment == shape.name]
        self._lives = 0
        self._partners = partners or (shape.name,)
        self._buckets = buckets

    def factory(self) -> SlotFactory:
        """Makes this deployment's runners."""
        return SlotFactory(
            create=lambda: SimRunner(self),
            model=f"simulated {self.shape.name}",
            resumes="simulated" if self.shape.resumable else None,
        )

    def fate(self, request: PriorityRequest, record: AttemptRecord) -> tuple[Caller, Dice]:
        """Who asks, and what becomes of the attempt that begins now."""
        caller = self._callers[request.request_id]
        number = request.attempts.index(record)
        if self.healed:
            return caller, Dice()
        if number < len(caller.dice) and caller.dice[number].trouble is not Trouble.NONE:
            return caller, caller.dice[number]
        now = asyncio.get_running_loop().time() if self._weather else 0.0
        for one in self._weather:
            if one.meets(caller.name, number, now):
                return caller, one.dice
        return caller, Dice()

    def host(self) -> Host:
        """The host of a slot that starts: a new one, or the one that all share."""
        if self.shape.shared_host and self.hosts:
            return self.hosts[0]
        self._lives += 1
        host = Host(self._lives, self._buried)
        self.hosts.append(host)
        return host

    def kill_host(self, cause: BaseException) -> None:
        """Ends the oldest host, if one lives."""
        if self.hosts:
            self.hosts[0].die(cause)

    def stop_host(self, seconds: float) -> None:
        """Lets nothing go on in the oldest host for so long, if one lives."""
        if self.hosts:
            self.concerns_all(HUNG)
            self.hosts[0].stop(seconds)

    def dismiss(self, host: Host) -> None:
        """A host is ended on purpose."""
        if host in self.hosts:
            self.hosts.remove(host)

    def come(self, key: int) -> Arrival:
        """A request has come with that key: whether something is left for it, and what it hears."""
        quota = self.shape.quota
        # of a limit that is never told each attempt to be faster is refused, for ever
        if quota is None or (self.healed and quota.telling == "nothing"):
            return Arrival()
        now = asyncio.get_running_loop().time()
        telling = "openai" if self.healed and quota.telling != "nothing" else quota.telling
        bucket = self._buckets[key]
        return Arrival(
            left=bucket.take(now),
            standing=bucket.standing(telling, now),
            true=telling in TRUE_TELLINGS,
        )

    def tell(self, key: int, arrival: Arrival, lease: Lease) -> None:
        """Says in an answer's head what was left of a key's limit when its request had come."""
        if arrival.standing is None or lease.on_standing is None:
            return
        if arrival.true:
            self.journal.record(Kind.KEY_TOLD, deployment=self.shape.name, key=key)
        lease.on_standing(arrival.standing)

    def refuse(
        self, key: int, seconds: float | None, request: PriorityRequest, record: AttemptRecord
    ) -> float | None:
        """Refuses a request because of its key's rate; returns when to come back, if it says so.

        Args:
            key: Which.
            seconds: That it asks to wait; None until something is left again.
            request: Whose.
            record: Of its attempt.
        """
        now = asyncio.get_running_loop().time()
        wait = self._buckets[key].wait(now) if seconds is None else seconds
        if self.shape.quota is None:
            told = wait or None
        else:
            told = hinted(self.shape.quota.hint, wait, now) if wait else None
        self.concerns_the_key(PAUSED)
        self.journal.record(
            Kind.KEY_LIMITED,
            request=request.request_id,
            worker=record.worker,
            epoch=record.epoch,
            deployment=self.shape.name,
            key=key,
            used_up=seconds is None,
        )
        if told:
            self.journal.record(Kind.KEY_PAUSED, deployment=self.shape.name, key=key, seconds=told)
        return told

    def landed(self, text: str, record: AttemptRecord, request: PriorityRequest) -> None:
        """A fault took effect on one attempt."""
        self.journal.record(
            Kind.FAULT_LANDED,
            request=request.request_id,
            worker=record.worker,
            epoch=record.epoch,
            text=text,
        )

    def concerns_all(self, text: str) -> None:
        """A fault took effect on the whole deployment."""
        self.journal.record(Kind.FAULT_LANDED, deployment=self.shape.name, text=text)

    def concerns_the_key(self, text: str) -> None:
        """A fault took effect on all deployments that send the same keys."""
        for name in self._partners:
            self.journal.record(Kind.FAULT_LANDED, deployment=name, text=text)

    def _buried(self, host: Host, cause: BaseException) -> None:
        self.hosts.remove(host)
        self.concerns_all(describe(cause))


class SimRunner:
    """One slot's access to a simulated provider or local model."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._shape = provider.shape
        self._host: Host | None = None
        self._worker = ""
        self._key = 0

    @property
    def abilities(self) -> Abilities:
        """Local or remote, as the shape says."""
        return Abilities(local=self._shape.local, resumable=self._shape.resumable)

    async def start(self) -> None:
        """Gets ready, or not, as the shape says.

        Raises:
            WorkerStartError: This start is one of those that fail.
        """
        number = self._provider.starts
        self._provider.starts += 1
        await asyncio.sleep(self._shape.start_seconds)
        if number in self._shape.bad_starts and not self._provider.healed:
            text = f"start {number} of {self._shape.name} failed"
            self._provider.concerns_all(text)
            raise WorkerStartError(text)
        if self._shape.local:
            self._host = self._provider.host()

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Streams the caller's answer, as far as the dice allow."""
        provider, record = self._provider, self._own_record(request)
        self._worker = record.worker
        self._key = 0 if lease.key is None else int(lease.key.read())
        caller, dice = provider.fate(request, record)
        begin = 0 if request.resume is None else request.resume.tokens
        if not self._shape.local:
            lease.arm(Step.CONNECT)
            await self._connect(dice, request, record)
        self._opened(dice, request, record)
        arrival = provider.come(self._key)
        try:
            self._arm(lease, Step.FIRST_TOKEN)
            if self._shape.quota is not None:
                await self._head(request, record, lease, arrival)
                self._arm(lease, Step.FIRST_TOKEN)
            await self._begin(dice, request, record)
            await self._gather(lease)
            gap = dice.seconds if dice.trouble is Trouble.SLOW else self._shape.token_seconds
            for index in range(begin, caller.tokens + 1):
                if index == max(begin, dice.after) and await self._breaks(dice, request, record):
                    return
                if index < caller.tokens:
                    await self._work(gap, dice)
                    self._arm(lease, Step.NEXT_TOKEN)
                    yield TokenChunk(str(index))
            yield Finished(
                FinishReason.STOP, Usage(prompt_tokens=1, completion_tokens=caller.tokens)
            )
        finally:
            self._closed(request, record)

    def _own_record(self, request: PriorityRequest) -> AttemptRecord:
        # beside a hedge the newest one may be another deployment's
        name = self._shape.name
        return next(record for record in reversed(request.attempts) if record.deployment == name)

    async def closed(self) -> BaseException:
        """Waits for the host's death; a provider has none."""
        if self._host is None:
            return await asyncio.get_running_loop().create_future()
        return await self._host.closed()

    def hung(self, cause: WorkerHungError) -> None:
        """Kills the host."""
        journal = self._provider.journal
        journal.record(Kind.KILL, worker=self._worker, deployment=self._shape.name)
        if self._host is not None:
            self._host.die(cause)

    async def aclose(self) -> None:
        """Leaves the host; one that nobody shares ends with its slot."""
        if self._host is not None and not self._shape.shared_host:
            self._provider.dismiss(self._host)

    async def _connect(self, dice: Dice, request: PriorityRequest, record: AttemptRecord) -> None:
        if dice.trouble is Trouble.HANG_CONNECT:
            self._provider.landed(SLOW_PROVIDER, record, request)
            await self._wait(None)
        await self._wait(CONNECT_SECONDS)
        if dice.trouble is Trouble.REFUSED:
            raise UpstreamConnectError(self._tell(dice, request, record))

    def _opened(self, dice: Dice, request: PriorityRequest, record: AttemptRecord) -> None:
        provider = self._provider
        provider.journal.record(
            Kind.PROVIDER_START,
            request=request.request_id,
            worker=record.worker,
            epoch=record.epoch,
            deployment=self._shape.name,
            zombie=dice.trouble is Trouble.ZOMBIE,
            key=self._key,
        )
        provider.open_streams += 1
        provider.most_open = max(provider.most_open, provider.open_streams)

    def _closed(self, request: PriorityRequest, record: AttemptRecord) -> None:
        self._provider.open_streams -= 1
        self._provider.journal.record(
            Kind.PROVIDER_END,
            request=request.request_id,
            worker=record.worker,
            epoch=record.epoch,
            deployment=self._shape.name,
        )

    async def _gather(self, lease: Lease) -> None:
        # shows that all slots can work at once; the wait is progress, so that no lease trips
        provider = self._provider
        for _ in range(GATHER_ROUNDS):
            if provider.most_open >= provider.gather:
                return
            await self._wait(self._shape.stall / 2)
            self._arm(lease, Step.FIRST_TOKEN)

    def _arm(self, lease: Lease, step: Step) -> None:
        if lease.step is not step:
            lease.arm(step)
        lease.progress()
        self._provider.journal.record(Kind.STEP, worker=self._worker, budget=lease.budget)

    async def _head(
        self, request: PriorityRequest, record: AttemptRecord, lease: Lease, arrival: Arrival
    ) -> None:
        speed = crc32(f"{request.request_id}/{record.epoch}".encode()) % HEADS
        await self._wait(2 * speed * self._shape.token_seconds)
        self._provider.tell(self._key, arrival, lease)
        if not arrival.left:
            seconds = self._provider.refuse(self._key, None, request, record)
            raise UpstreamRateLimitedError(PAUSED, retry_after=seconds)

    async def _begin(self, dice: Dice, request: PriorityRequest, record: AttemptRecord) -> None:
        # what can go wrong before the first token does
        if self._key in self._shape.revoked and not self._provider.healed:
            self._provider.concerns_the_key(REVOKED)
            raise UpstreamAuthenticationError(REVOKED)
        if dice.trouble not in BEFORE_A_TOKEN:
            return
        text = self._tell(dice, request, record)
        await self._wait(self._shape.token_seconds)
        match dice.trouble:
            case Trouble.RATE_LIMITED:
                seconds = self._provider.refuse(self._key, dice.seconds, request, record)
                raise UpstreamRateLimitedError(text, retry_after=seconds)
            case Trouble.SERVER_ERROR:
                raise UpstreamServerError(text)
            case Trouble.BAD_REQUEST:
                raise InvalidRequestError(text)
            case Trouble.BUG:
                raise ValueError(text)
            case Trouble.HANG_FIRST:
                await self._wait(None)
            case _:
                self._crash(text)

    async def _breaks(self, dice: Dice, request: PriorityRequest, record: AttemptRecord) -> bool:
        # true if the stream just ends here; what else can go wrong in mid-stream does
        if dice.trouble not in MIDWAY:
            return False
        text = self._tell(dice, request, record)
        match dice.trouble:
            case Trouble.CUT:
                raise UpstreamTruncatedError(text)
            case Trouble.HANG_MID:
                await self._wait(None)
            case Trouble.CRASH_MID:
                self._crash(text)
            case Trouble.ZOMBIE:
                await _refuse_to_die(dice.seconds)
            case _:
                pass
        return dice.trouble is Trouble.CLEAN_CUT

    def _tell(self, dice: Dice, request: PriorityRequest, record: AttemptRecord) -> str:
        # the journal has the fault before anybody can learn of it
        text = f"{dice.trouble} in attempt {record.epoch} of {request.request_id}"
        self._provider.landed(self._told_of_it(dice, text), record, request)
        return text

    def _told_of_it(self, dice: Dice, text: str) -> str:
        match dice.trouble:
            case Trouble.HANG_FIRST | Trouble.HANG_MID | Trouble.ZOMBIE:
                return HUNG if self._shape.local else SLOW_PROVIDER
            case Trouble.CLEAN_CUT:
                return UNFINISHED
            case _:
                return text

    def _crash(self, text: str) -> None:
        # ends the worker from within: its host, or else the runner's own task
        if self._host is None:
            raise SystemExit(text)
        self._host.die(RuntimeError(text))
        raise self._host.crash()

    async def _work(self, seconds: float, dice: Dice) -> None:
        # what has refused to die outlives its host, and answers
        if dice.trouble is Trouble.ZOMBIE:
            await asyncio.sleep(seconds)
        else:
            await self._wait(seconds)

    async def _wait(self, seconds: float | None) -> None:
        if self._host is not None:
            await self._host.wait(seconds)
        elif seconds is None:
            await asyncio.get_running_loop().create_future()
        else:
            await asyncio.sleep(seconds)


async def _refuse_to_die(seconds: float) -> None:
    # work that can't be canceled: the cancel is swallowed, the work goes on
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(until - loop.time())
