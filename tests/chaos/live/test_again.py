"""The command that a report tells to run it again."""

from pathlib import Path

from orchestrator.chaos.live.options import Options, again
from orchestrator.chaos.scenario.reading import find_scenario


def test_the_replay_line_has_all_that_the_run_was_told():
    scenario = find_scenario("stalls")
    told = Options(
        scenario=scenario,
        folder=Path(),
        named="my scenarios/a.yaml",
        config=Path("gateway.yaml"),
        stubs=True,
        route="chat",
        planted="leak-a-slot",
        slower=2.5,
    )

    assert again(Options(scenario=scenario, folder=Path())) == "orchestrator chaos live stalls"
    assert again(told) == (
        "orchestrator chaos live 'my scenarios/a.yaml' --config gateway.yaml --route chat"
        " --planted leak-a-slot --slower 2.5 --stubs"
    )


def test_the_replay_line_of_an_attached_run_names_its_target():
    told = Options(
        scenario=find_scenario("stalls"),
        folder=Path(),
        attach="http://127.0.0.1:8080",
        state_dir=Path("state"),
        sure=True,
    )

    assert again(told).endswith("stalls --target http://127.0.0.1:8080 --state-dir state --yes")
