"""The verdict as JSON, `orchestrator/chaos/v1`, and as JUnit's XML."""

from xml.etree import ElementTree as ET

import msgspec

from orchestrator.chaos.verdict.figures import Figures
from orchestrator.chaos.verdict.judgement import Verdict

SCHEMA = "orchestrator/chaos/v1"


def as_json(verdict: Verdict) -> bytes:
    """The whole verdict; keys are only ever added within a version."""
    return msgspec.json.format(msgspec.json.encode(as_plain(verdict)), indent=1) + b"\n"


def as_plain(verdict: Verdict) -> dict[str, object]:
    """The verdict as plain data."""
    return {
        "schema": SCHEMA,
        "outcome": verdict.in_words,
        "exit_code": int(verdict.outcome),
        "conclusive": not verdict.doubts,
        "scenario": verdict.scenario,
        "world": verdict.world,
        "mode": verdict.mode,
        "seed": verdict.seed,
        "planted": verdict.planted,
        "provenance": dict(verdict.provenance),
        "seconds": verdict.seconds,
        "recovery_seconds": verdict.recovery,
        "slack_seconds": verdict.slack,
        "phases": {name: _figures(figures) for name, figures in verdict.phases.items()},
        "faults": [msgspec.to_builtins(fault) for fault in verdict.faults],
        "invariants": {
            name: {
                "checked": checked,
                "violations": [
                    {"request": found.request, "text": found.text}
                    for found in verdict.violations
                    if found.id == name
                ],
            }
            for name, checked in verdict.checked.items()
        },
        "missed": list(verdict.missed),
        "doubts": list(verdict.doubts),
        "left": list(verdict.left),
    }


def _figures(figures: Figures) -> dict[str, object]:
    return {
        "requests": figures.requests,
        "done": figures.done,
        "canceled": figures.canceled,
        "rejected": figures.rejected,
        "errors": dict(figures.errors),
        "attempts": figures.attempts,
        "ttft_seconds": {f"p{share}": figures.ttft(share / 100) for share in (50, 95, 99)},
        "lateness_seconds": figures.lateness,
    }


def as_junit(verdict: Verdict) -> bytes:
    """One test case for each invariant, fault and expectation."""
    suite = ET.Element("testsuite", name=f"chaos {verdict.scenario}", time=f"{verdict.seconds:.3f}")
    for name, checked in verdict.checked.items():
        found = [violation.text for violation in verdict.violations if violation.id == name]
        _case(suite, "invariant", f"{name} ({checked} checked)", found)
    for fault in verdict.faults:
        wrong = [] if fault.landed else ["did not land"]
        _case(suite, "fault", f"{fault.number} {fault.what}", wrong)
    _case(suite, "expectation", "all that is expected", list(verdict.missed))
    _case(suite, "residue", "nothing is left", list(verdict.left))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)


def _case(suite: ET.Element, kind: str, name: str, wrong: list[str]) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"chaos.{kind}", name=name)
    if wrong:
        ET.SubElement(case, "failure", message=wrong[0]).text = "\n".join(wrong)
