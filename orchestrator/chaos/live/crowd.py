"""The load of a live run: callers who come as the scenario says, and behave as its faults say."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.chaos.journal import Journal
from orchestrator.chaos.live.visitor import PATIENCE, Manner, Visitor, Wish
from orchestrator.chaos.scenario.sections import Fault, Load

MANNERS: dict[str, Manner] = {
    "cancel": "cancel",
    "rst": "rst",
    "slow_reader": "slow_reader",
    "never_reads": "never_reads",
}
RECENT = 50
SLACK = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What is asked of models that don't count, each prompt with its answer if that is known."""

    texts: Sequence[tuple[str, str | None]] = ()
    """Empty for stubs, whose answers prove themselves."""
    tokens: int = 24
    """The longest answer to one of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class Crowd:
    """Everybody who asks.

    Args:
        address: Host and port of the gateway.
        load: Who asks for what.
        route: The model that they ask for.
        deadline: Seconds that a request has if the load says nothing.
        journal: Told of all.
        chance: Draws times, lengths and manners.
        prompts: What they ask.
    """

    address: tuple[str, int]
    load: Load
    route: str
    deadline: float
    journal: Journal
    chance: random.Random
    prompts: Prompts
    sent: int = 0
    on_sent: Callable[[], None] = field(default=lambda: None)
    _listeners: dict[int, Callable[[str, int], None]] = field(
        default_factory=dict[int, Callable[[str, int], None]]
    )
    recent: deque[str] = field(default_factory=lambda: deque[str](maxlen=RECENT))
    """Outcomes of those who went last."""
    _windows: dict[int, Fault] = field(default_factory=dict[int, Fault])
    _tasks: set[asyncio.Task[str]] = field(default_factory=set[asyncio.Task[str]])

    def __repr__(self) -> str:
        return f"<Crowd, {self.sent} sent, {len(self._tasks)} wait>"

    def behave(self, number: int, fault: Fault) -> Callable[[], None]:
        """Lets a share of those who come behave badly; returns what ends it."""
        self._windows[number] = fault
        return lambda: self._windows.pop(number, None) and None

    def listen(self, tell: Callable[[str, int], None]) -> Callable[[], None]:
        """Tells of each token that is read, by the request's name and how many it has now.

        Returns what ends it.
        """
        key = id(tell)
        self._listeners[key] = tell
        return lambda: self._listeners.pop(key, None) and None

    async def come(self, prefix: str, seconds: float, *, must_succeed: bool = False) -> None:
        """Sends requests for so long; those that are out stay out.

        Args:
            prefix: Of their names.
            seconds: How long.
            must_succeed: Whether nothing is broken any more.
        """
        loop = asyncio.get_running_loop()
        due, end = loop.time(), loop.time() + seconds
        while due < end:
            await asyncio.sleep(due - loop.time())
            self.send(self._wish(prefix, must_succeed=must_succeed))
            gap = 1.0 / self.load.rate
            due += self.chance.expovariate(1.0 / gap) if self.load.shape == "poisson" else gap

    def burst(self, number: int, fault: Fault) -> None:
        """Sends many at once."""
        for _ in range(fault.n):
            self.send(self._wish(f"x{number}-", fault=number))

    async def ask(self, prefix: str) -> bool:
        """Sends one and waits for it; whether it was served."""
        wish = self._wish(prefix, plain=True)
        return await self.send(wish) != "" and self.recent[-1] == "done"

    async def ask_for(self, name: str, text: str) -> str:
        """Asks one prompt and returns the answer."""
        wish = Wish(
            name=name, route=self.route, tokens=self.prompts.tokens, deadline=60.0, text=text
        )
        return await self.send(wish)

    def send(self, wish: Wish) -> "asyncio.Task[str]":
        """Lets one come."""
        visitor = Visitor(self.address, wish, self.journal, self.recent.append, self._heard)
        task = asyncio.create_task(visitor.visit())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.sent += 1
        self.on_sent()
        return task

    async def settle(self) -> None:
        """Waits until everybody has gone; each gives up by itself in the end."""
        longest = max([self.deadline, *self.load.deadlines]) + PATIENCE + SLACK
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=longest)
        await self.disperse()

    async def disperse(self) -> None:
        """Sends everybody home."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _heard(self, name: str, tokens: int) -> None:
        for tell in tuple(self._listeners.values()):
            tell(name, tokens)

    def _wish(
        self,
        prefix: str,
        *,
        must_succeed: bool = False,
        fault: int | None = None,
        plain: bool = False,
    ) -> Wish:
        chance, load = self.chance, self.load
        weights = load.priorities.model_dump()
        text, answer = chance.choice(self.prompts.texts) if self.prompts.texts else (None, None)
        manner: Manner = "reads"
        window: Fault | None = None
        if not (must_succeed or plain or fault is not None):
            for number, bad in self._windows.items():
                if chance.random() < bad.toxicity:
                    manner, window, fault = MANNERS[bad.do], bad, number
                    break
        return Wish(
            name=f"{prefix}{self.sent}",
            route=self.route,
            tokens=self.prompts.tokens if text is not None else chance.randint(*load.tokens),
            priority=chance.choices(list(weights), list(weights.values()))[0],
            deadline=self.deadline
            if must_succeed or plain or not load.deadlines
            else chance.choice(load.deadlines),
            manner=manner,
            after_tokens=0 if window is None else window.after_tokens,
            rate=0 if window is None else window.size,
            must_succeed=must_succeed,
            fault=fault,
            text=text,
            answer=answer,
        )
