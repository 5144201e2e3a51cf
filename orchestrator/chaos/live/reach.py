"""What can be done to a gateway that somebody else has started, and what can't."""

from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.errors import ConfigError

NOT_OURS = ("sigterm", "reload")
"""A gateway that somebody else has started is his to end, and its configuration is his."""


def must_be_within_reach(scenario: Scenario) -> None:
    """Refuses a scenario with a fault that would never land there.

    Raises:
        ConfigError: It has one.
    """
    wrong = [
        f"faults[{number}]: {fault.target} {fault.do}"
        for number, fault in enumerate(scenario.faults)
        if fault.target == "provider" or fault.do in NOT_OURS
    ]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: not with --target, for no fault proxy stands before the providers"
            " of a gateway that runs, and it is not ours to end or reload; --config starts one"
        )
