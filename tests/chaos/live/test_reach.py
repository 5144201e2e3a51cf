"""What can't be done to a gateway that somebody else has started is refused beforehand."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.chaos.live.attack import fault_from
from orchestrator.chaos.live.options import Options
from orchestrator.chaos.live.run import run_live
from orchestrator.chaos.scenario.reading import find_scenario
from orchestrator.errors import ConfigError


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [("cut-streams", r"faults\[0\]: provider cut"), ("drain-under-load", "gateway sigterm")],
)
def test_a_fault_that_could_never_land_there_is_refused(
    tmp_path: Path, scenario: str, fault: str
) -> None:
    options = Options(
        scenario=find_scenario(scenario), folder=tmp_path, attach="http://127.0.0.1:9"
    )

    with pytest.raises(ConfigError, match=fault):
        asyncio.run(run_live(options))


@pytest.mark.parametrize("name", ["sigterm", "cut", "nonsense"])
def test_an_attack_that_is_not_possible_names_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"crash, segv, .*poison, kill_supervisor, fd_exhaust$"):
        fault_from(name, whom="any", lasts="", settings=[])


@pytest.mark.parametrize("setting", ["at_point=worker.idle", "after_tokens=3", "times=2"])
def test_an_attack_refuses_to_wait_or_to_repeat(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"--set {setting.split('=', maxsplit=1)[0]}: "):
        fault_from("crash", whom="any", lasts="", settings=[setting])


def test_an_attack_on_a_provider_is_told_of_the_proxy() -> None:
    with pytest.raises(ConfigError, match="chaos proxy --fault"):
        fault_from("cut", whom="any", lasts="", settings=[])
