"""Reads scenario files, and tells all that is wrong in one, a line a fault."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from orchestrator.chaos.scenario.catalogue import CATALOGUE, TARGETS, Target, World
from orchestrator.chaos.scenario.sections import Fault, Scenario
from orchestrator.errors import ConfigError
from orchestrator.reading.faults import findings_in, nearest, report, shown
from orchestrator.reading.schema import editor_schema
from orchestrator.reading.text import Document, Finding, list_of, section_of

WHEN = frozenset({"at", "after_requests", "do", *TARGETS})
SUFFIX = ".yaml"


def shelf() -> Path:
    """The folder of the scenarios that ship with the package."""
    package = Path(__file__).parent.parent.parent
    installed = package / "scenarios"  # only a wheel puts it there
    return installed if installed.exists() else package.parent / "config" / "chaos"


def shipped() -> list[Scenario]:
    """All scenarios that ship with the package, by name.

    Raises:
        ConfigError: One of them can't be used.
    """
    return [load_scenario(path) for path in sorted(shelf().glob(f"*{SUFFIX}"))]


def find_scenario(name: str) -> Scenario:
    """A scenario by the path of its file, or by the name of one that ships with the package.

    Raises:
        ConfigError: There is none, or it can't be used.
    """
    place = Path(name)
    if place.suffix in (SUFFIX, ".yml") or place.exists():
        return load_scenario(place)
    known = {path.stem: path for path in shelf().glob(f"*{SUFFIX}")}
    if name not in known:
        raise ConfigError(f"no scenario {shown(name)}; {nearest(name, sorted(known))}")
    return load_scenario(known[name])


def load_scenario(path: Path) -> Scenario:
    """Reads a file.

    Raises:
        ConfigError: It can't be used; the message has a line for each fault.
    """
    try:
        return parse_scenario(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: the file can't be read: {reason}") from error


def parse_scenario(yaml: str, source: str = "<text>") -> Scenario:
    """Reads YAML text.

    Args:
        yaml: The text.
        source: Its name in messages.

    Raises:
        ConfigError: It can't be used; the message has a line for each fault.
    """
    document = Document(yaml, source)
    findings = list(document.findings)
    scenario = None
    if document.data is None and not findings:
        findings = [Finding(line=1, path=(), text="the file is empty; version is missing")]
    elif document.data is not None:
        findings += _faults_findings(document)
        try:
            scenario = Scenario.model_validate(document.data)
        except ValidationError as error:
            findings += findings_in(error, document, editor_schema(Scenario))
    if scenario is None or findings:
        raise ConfigError(report(source, findings))
    return scenario


def runs_in(scenario: Scenario, world: World) -> list[str]:
    """The faults that this world can't run, a line each; empty if it runs all of them."""
    return [
        f"faults[{index}]: {fault.target} {fault.do} runs in {', '.join(sorted(kind.worlds))} only"
        for index, fault in enumerate(scenario.faults)
        if world not in (kind := CATALOGUE[fault.target, fault.do]).worlds
    ]


def _faults_findings(document: Document) -> Iterator[Finding]:
    """Checks each fault against the catalogue, in data that may be wrong in every other way."""
    known = {_spelt(name) for name in Fault.model_fields}
    for index, item in enumerate(list_of(section_of(document.data).get("faults"))):
        fault, path = section_of(item), ("faults", index)
        targets: list[Target] = [target for target in TARGETS if fault.get(target) is not None]
        if len(targets) != 1:
            text = f"exactly one of {', '.join(TARGETS)} says whom it meets; found {len(targets)}"
            yield Finding(line=document.line_of(path), path=path, text=text)
            continue
        yield from _against_the_catalogue(document, index, targets[0], known)


def _against_the_catalogue(
    document: Document, index: int, target: Target, known: set[str]
) -> Iterator[Finding]:
    fault = section_of(list_of(section_of(document.data).get("faults"))[index])
    name, place = fault.get("do"), ("faults", index, "do")
    names = [known_name for known_target, known_name in CATALOGUE if known_target == target]
    if not isinstance(name, str):
        return  # the model tells it
    if name not in names:
        text = f"no fault {shown(name)} of a {target}; {nearest(name, names)}"
        yield Finding(line=document.line_of(place), path=place, text=text)
        return
    takes = CATALOGUE[target, name].takes
    if target == "worker" and {"at_point", "after_tokens"} <= fault.keys():
        path = ("faults", index, "after_tokens")
        text = "either a point is waited for, or so many tokens of an answer; found both"
        yield Finding(line=document.line_of(path), path=path, text=text)
    for key in fault:
        if key in known and key not in takes | WHEN:
            path = ("faults", index, key)
            text = f"means nothing to {name}; it takes {', '.join(sorted(takes)) or 'no more keys'}"
            yield Finding(line=document.line_of(path), path=path, text=text)


def _spelt(name: str) -> str:
    return name.rstrip("_")
