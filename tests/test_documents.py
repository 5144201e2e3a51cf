"""What the documents claim is true."""

import re
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.config import load, schema
from tests.documents import ARCHITECTURE, PROVIDERS, ROOT, with_tables

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/providers.md"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def names_of_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }


@pytest.mark.parametrize("path", [ARCHITECTURE, PROVIDERS], ids=lambda path: path.name)
def test_the_tables_of_the_documents_equal_the_code(path: Path) -> None:
    text = path.read_text("utf-8")

    assert with_tables(text) == text, "run `python -m tests.documents`"


def test_every_test_that_a_document_names_exists() -> None:
    named = {
        name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)`", text_of(document))
    }

    assert named, "the promises name their tests"
    assert named - names_of_tests() == set()


def test_every_promise_of_the_design_has_a_test() -> None:
    promises = re.findall(r"^\| (\d+) \|.*`test_\w+`", text_of("ARCHITECTURE.md"), re.MULTILINE)

    assert [int(number) for number in promises] == list(range(1, 11))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_to_a_file(document: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", text_of(document))

    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_in_backticks_exists(document: str) -> None:
    named = re.findall(r"`((?:orchestrator|tests|config|bench)/[\w./-]+)`", text_of(document))

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))

    code = "\n".join(
        re.findall(r"`[^`]*`|^make .*$", "".join(map(text_of, DOCUMENTS)), re.MULTILINE)
    )
    named = set(re.findall(r"\bmake ([a-z-]+)", code))

    assert named
    assert named - targets == set()


CONFIGURATIONS = sorted({*(ROOT / "config").rglob("*.yaml")} - {*(ROOT / "config/chaos").iterdir()})


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda p: p.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    environ = dict.fromkeys(re.findall(r"env: (\w+)", path.read_text("utf-8")), "a-key")

    assert load(path, environ=environ).deployments


def keys_of(node: object) -> set[str]:
    """Names of all properties in a JSON Schema."""
    if isinstance(node, list):
        return {key for inner in cast("list[object]", node) for key in keys_of(inner)}
    if not isinstance(node, dict):
        return set()
    mapping = cast("dict[str, object]", node)
    properties = mapping.get("properties")
    own = set(cast("dict[str, object]", properties)) if isinstance(properties, dict) else set[str]()
    return own.union(*(keys_of(inner) for inner in mapping.values()))


def test_every_key_of_the_configuration_stands_in_a_shipped_file() -> None:
    text = "".join(path.read_text("utf-8") for path in (ROOT / "config").rglob("*.yaml"))

    missing = [key for key in sorted(keys_of(schema())) if not re.search(rf"\b{key}\b", text)]

    assert missing == []


def test_every_subcommand_that_a_document_names_has_help() -> None:
    named = {
        command
        for document in DOCUMENTS
        for command in re.findall(r"^orchestrator (\w+)", text_of(document), re.MULTILINE)
    }

    assert named >= {"serve", "check", "submit"}
    for command in sorted(named):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0, result.output
