"""A scenario slowed down, for models that are slower than the stubs it was written for.

Every time in it is so many times as long and every rate so many times as small: as many requests
come, and the faults meet them at the same places.
"""

from dataclasses import replace

from orchestrator.chaos.scenario.sections import Fault, Load, Scenario, System
from orchestrator.chaos.scenario.values import Bound

BYTES_A_SECOND = frozenset({"bandwidth", "slow_reader"})
"""Faults whose size is a rate."""


def slowed(scenario: Scenario, times: float) -> Scenario:
    """Returns the scenario so many times as slow; 1 leaves it as it is."""
    if times == 1:
        return scenario
    steady, expect, safeguards = scenario.steady, scenario.expect, scenario.safeguards
    return scenario.model_copy(
        update={
            "system": _system(scenario.system, times),
            "load": _load(scenario.load, times),
            "steady": steady.model_copy(
                update={
                    "ttft_p95": _bound(steady.ttft_p95, times),
                    "for_": steady.for_ * times,
                }
            ),
            "faults": tuple(_fault(fault, times) for fault in scenario.faults),
            "heal": scenario.heal * times,
            "expect": expect.model_copy(
                update={
                    "recovery": _bound(expect.recovery, times),
                    "ttft_p95": _bound(expect.ttft_p95, times),
                }
            ),
            "safeguards": safeguards.model_copy(
                update={"ready_false_for": safeguards.ready_false_for * times}
            ),
        }
    )


def _system(system: System, times: float) -> System:
    restart = system.restart
    return system.model_copy(
        update={
            "deadline": system.deadline * times,
            "stall": system.stall * times,
            "open_for": system.open_for * times,
            "restart": restart.model_copy(update={"per": restart.per * times}),
            "permits": system.permits and max(1, round(system.permits / times)),
        }
    )


def _load(load: Load, times: float) -> Load:
    return load.model_copy(
        update={
            "rate": load.rate / times,
            "for_": load.for_ * times,
            "deadlines": tuple(deadline * times for deadline in load.deadlines),
        }
    )


def _fault(fault: Fault, times: float) -> Fault:
    every, retry_after = fault.every, fault.retry_after
    update: dict[str, object] = {
        "at": fault.at * times,
        "for_": fault.for_ * times,
        "every": every and every * times,
        "interval": fault.interval * times,
        "jitter": fault.jitter * times,
        "retry_after": retry_after and retry_after * times,
    }
    if fault.target == "provider":  # how long a gateway's loop may stand still knows no models
        update["seconds"] = fault.seconds * times
    if fault.do in BYTES_A_SECOND:
        update["size"] = max(1, round(fault.size / times))
    return fault.model_copy(update=update)


def _bound(bound: Bound | None, times: float) -> Bound | None:
    if bound is None:
        return None
    seconds = bound.number * times
    return replace(bound, number=seconds, text=f"{bound.sign} {seconds:g}s")
