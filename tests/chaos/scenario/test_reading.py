"""Scenario files: those that ship, and what is told of those that are wrong."""

import pytest

from orchestrator.chaos.scenario.catalogue import CATALOGUE
from orchestrator.chaos.scenario.reading import (
    find_scenario,
    parse_scenario,
    runs_in,
    shelf,
    shipped,
)
from orchestrator.chaos.scenario.values import read_bound
from orchestrator.errors import ConfigError

HEAD = "version: 1\nname: x\nabout: an example\nsteady: {}\n"


def test_every_scenario_that_ships_is_named_for_its_file_and_runs_in_both_worlds() -> None:
    names = [path.stem for path in sorted(shelf().glob("*.yaml"))]

    assert [scenario.name for scenario in shipped()] == names
    assert len(names) >= 18
    for scenario in shipped():
        assert runs_in(scenario, "sim") == runs_in(scenario, "live") == []


def test_the_scenarios_together_use_faults_of_every_target() -> None:
    used = {(fault.target, fault.do) for scenario in shipped() for fault in scenario.faults}

    assert {target for target, _ in used} == {"worker", "provider", "client", "gateway"}
    assert len(used) >= 20


def test_every_fault_says_how_it_is_undone_and_what_shows_that_it_landed() -> None:
    assert [key for key, kind in CATALOGUE.items() if not (kind.undo and kind.evidence)] == []
    assert [key for key, kind in CATALOGUE.items() if not kind.stresses] == []


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("", "x.yaml:1: the file is empty; version is missing"),
        ("version: 1\nname: x\nabout: y\n", "steady: missing"),
        (HEAD + "extra: 1\n", "x.yaml:5: extra: unknown key"),
        (HEAD + "seed: many\n", 'x.yaml:5: seed: found "many", a whole number'),
        (HEAD + "load: {rate: 20}\n", "load.rate: found 20, a rate above 0 with its unit"),
        (HEAD + "expect: {done: much}\n", 'expect.done: found "much", a comparison'),
        (HEAD + "faults: [{at: 1s, do: crash}]\n", "exactly one of worker, provider, client"),
        (HEAD + "faults: [{worker: any, do: crush}]\n", 'no fault "crush" of a worker; did you'),
        (HEAD + "faults: [{worker: any, do: crash, code: 1}]\n", "code: means nothing to crash"),
        (HEAD + "faults: [{worker: any, do: stop, at_point: x}]\n", "list points` has them all"),
        (HEAD + "faults: [{provider: any, do: cut, nth: 2}]\n", "nth: means nothing to cut"),
        (
            HEAD + "faults: [{worker: any, do: crash, at_point: worker.idle, after_tokens: 2}]\n",
            "x.yaml:5: faults[0].after_tokens: either a point is waited for, or so many tokens",
        ),
        (HEAD + "faults: [{provider: any, do: cut, where: after_send}]\n", "where: means nothing"),
        (HEAD + "faults: [{at: 5, worker: any, do: crash}]\n", "faults[0].at: found 5, a duration"),
        ("version: 1\n\tname: x", "x.yaml:2: broken YAML"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_told_with_its_line(yaml: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(yaml, "x.yaml")

    assert told in caught.value.message


def test_a_name_that_is_nearly_right_is_told_the_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        find_scenario("provider-429-strom")


def test_a_bound_compares_in_seconds_whatever_its_unit() -> None:
    assert read_bound("<= 500ms").holds(0.5)
    assert not read_bound("< 1s").holds(1.0)
    assert read_bound(">= 0.99").holds(1.0)
    with pytest.raises(ValueError, match="no comparison"):
        read_bound("about 3")
