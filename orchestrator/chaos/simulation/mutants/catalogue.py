"""All planted bugs by name, with their origin."""

from orchestrator.actors.engine import Engine
from orchestrator.actors.supervisor import Supervisor
from orchestrator.actors.worker import RemoteWorker
from orchestrator.chaos.simulation.mutants import (
    channels,
    engines,
    policies,
    registry,
    routes,
    supervisors,
)
from orchestrator.chaos.simulation.mutants.planting import Mutant, Patch, grafted, instead_of
from orchestrator.deployment import RunningDeployment
from orchestrator.inflight import Inflight
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.concurrency import Concurrency
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.sharing import SharedKeys
from orchestrator.policies.queue import PriorityQueue
from orchestrator.policies.retry import RetryBudget

HERE = "invited by this code"
INFINITY, RAKKA, HF2Q = "infinity, pull request 668", "rakka", "hf2q"
QUEUE = "orchestrator.policies.queue"
ROUTER, JOURNEY = "orchestrator.routing.router", "orchestrator.routing.journey"
WIRING = "orchestrator.wiring"
KEY = "orchestrator.policies.limits.key"
SHARING = "orchestrator.policies.limits.sharing"
PROTOTYPE = "the prototype of the simulation"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("registration race", INFINITY, instead_of(Inflight, registry.RegistersLater)),
    Mutant("retry after the first token", RAKKA, grafted([channels.RestartsInSight])),
    Mutant("dummy permit", RAKKA, instead_of(RateLimiter, policies.LetsAllPass)),
    Mutant("hang judged by age", INFINITY, grafted([channels.JudgesByAge])),
    Mutant("root cause lost", INFINITY, instead_of(Inflight, registry.LosesTheCause)),
    Mutant("late result accepted", PROTOTYPE, grafted([channels.TakesLateResults])),
    Mutant("second terminal", PROTOTYPE, grafted([channels.EndsTwice])),
    Mutant(
        "poison healed by a late success",
        HF2Q,
        instead_of(RunningDeployment, registry.HealedByASuccess),
    ),
    Mutant("slot lost on a crash", RAKKA, instead_of(Supervisor, supervisors.LosesASlot)),
    Mutant(
        "engine dies on a heap tie", PROTOTYPE, instead_of(PriorityQueue, policies.TiesOnTheHeap)
    ),
    Mutant(
        "cancel before start still runs",
        PROTOTYPE,
        instead_of(RemoteWorker, engines.StartsTheCanceled),
    ),
    Mutant("cancel does not close upstream", RAKKA, instead_of(Engine, engines.LeavesTheStream)),
    Mutant("no retry budget", RAKKA, instead_of(RetryBudget, policies.NoBudget)),
    Mutant("half-open floods", RAKKA, instead_of(Breaker, policies.Floods)),
    Mutant("unbounded queue", RAKKA, instead_of(PriorityQueue, policies.NeverRefuses)),
    Mutant(
        "deadline not enforced in the queue",
        INFINITY,
        (
            Patch(
                "orchestrator.routing.router", "_arm_deadline", engines.never_expires_in_the_queue
            ),
        ),
    ),
    Mutant(
        "a cancel is retried",
        "tenacity's negative predicates",
        instead_of(Engine, engines.RetriesTheCanceled),
    ),
    Mutant(
        "supervisor's death unseen", PROTOTYPE, instead_of(RunningDeployment, registry.FailsOpen)
    ),
    Mutant("poison leaves the pending", INFINITY, instead_of(Inflight, registry.LeavesThePending)),
    Mutant("last fault is the state", HF2Q, instead_of(Inflight, registry.PoisonsAgain)),
    Mutant("pen kept at a retract", HERE, grafted([channels.KeepsThePen])),
    Mutant("ending wakes nobody", HERE, grafted([channels.EndsSilently])),
    Mutant("retry queued after the request left", HERE, instead_of(Engine, engines.QueuesTheGone)),
    Mutant("gate hides the first error", HERE, instead_of(Engine, engines.BlamesTheGate)),
    Mutant("permit of a lost slot kept", HERE, instead_of(Engine, engines.ForgetsThePermit)),
    Mutant(
        "refusal taken for the first error", HERE, instead_of(Engine, engines.RemembersARefusal)
    ),
    Mutant("pause of a key ignored", RAKKA, instead_of(RateLimiter, policies.IgnoresPauses)),
    Mutant("permit of another key", HERE, instead_of(RateLimiter, policies.SendsTheNextKey)),
    Mutant("stays in line", HERE, instead_of(RateLimiter, policies.StaysInLine)),
    Mutant("a key's line is jumped", HERE, (Patch(SHARING, "Line", policies.JumpsTheLine),)),
    Mutant(
        "a key's line knows no urgency", HERE, (Patch(SHARING, "Line", policies.KnowsNoUrgency),)
    ),
    Mutant("one key, two limits", HERE, instead_of(SharedKeys, policies.SharesNothing)),
    Mutant("earlier of two pauses", "LiteLLM", grafted([policies.RestsForTheSooner])),
    Mutant("what is left ignored", HERE, (Patch(KEY, "Mirror", policies.HearsAndForgets),)),
    Mutant(
        "what is on its way forgotten",
        HERE,
        (Patch(KEY, "Mirror", policies.ForgetsWhatIsOnItsWay),),
    ),
    Mutant("slowed down in name", HERE, (Patch(KEY, "Throttle", policies.SlowsInName),)),
    Mutant("slow for ever", HERE, (Patch(KEY, "Throttle", policies.StaysSlow),)),
    Mutant("open time does not grow", HERE, instead_of(Breaker, policies.OpensForAsLong)),
    Mutant("probe kept by a cancel", HERE, instead_of(Breaker, policies.KeepsTheProbe)),
    Mutant("verdict of an old era counts", HERE, instead_of(Breaker, policies.CountsOldVerdicts)),
    Mutant(
        "timer of an old generation counts", HERE, instead_of(Supervisor, supervisors.HearsTheOld)
    ),
    Mutant("restarts without a budget", HERE, instead_of(Supervisor, supervisors.RestartsForEver)),
    Mutant(
        "gone from the queue, dispatched", HERE, instead_of(PriorityQueue, policies.KeepsTheGone)
    ),
    Mutant("retry loses its place", HERE, instead_of(PriorityQueue, policies.LosesThePlace)),
    Mutant("aging ignored", HERE, (Patch(QUEUE, "Turns", policies.AgesNobody),)),
    Mutant("no turns of callers", HERE, (Patch(QUEUE, "Turns", policies.KeepsOnServing),)),
    Mutant("the highest class is shed", HERE, (Patch(QUEUE, "Turns", policies.ShedsTheHighest),)),
    Mutant("a retry is shed", HERE, (Patch(QUEUE, "Turns", policies.ShedsTheTried),)),
    Mutant("shed and dispatched", HERE, instead_of(PriorityQueue, policies.ShedsInName)),
    Mutant("extra place forgotten", HERE, instead_of(PriorityQueue, policies.ForgetsThePatient)),
    Mutant("limit not kept", HERE, instead_of(Concurrency, policies.AllowsAny)),
    Mutant("limit falls to nothing", HERE, instead_of(Concurrency, policies.FallsToNothing)),
    Mutant("hedge's loser writes", HERE, (Patch(JOURNEY, "Race", routes.BothWrite),)),
    Mutant("hedges without a budget", HERE, (Patch(WIRING, "Hedging", routes.HedgesAll),)),
    Mutant("resume off by one", HERE, grafted([routes.ResumesOneTooEarly])),
    Mutant("loop over deployments", HERE, (Patch(ROUTER, "Journey", routes.LoopsOver),)),
    Mutant(
        "tries multiplied by deployments",
        "Bifrost",
        (
            Patch(ROUTER, "Journey", routes.NeverSpent),
            Patch("orchestrator.attempt", "_moves_on", routes.tries_on),
        ),
    ),
    Mutant("priority ignored", HERE, (Patch(QUEUE, "Turns", policies.IgnoresPriority),)),
)
