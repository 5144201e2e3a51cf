import pytest
from pydantic import BaseModel, ValidationError

from orchestrator.reading import sections
from orchestrator.reading.references import Secret
from orchestrator.reading.remote import OpenAI
from orchestrator.reading.sections import (
    Retry,
    Section,
    Server,
    Supervision,
    Timeouts,
    Torch,
)

ENDPOINT = {"kind": "openai", "base_url": "http://127.0.0.1:9000/v1", "model": "m"}


SECTIONS = [
    value
    for value in vars(sections).values()
    if isinstance(value, type) and issubclass(value, Section) and value is not Section
]


def refusal(section: type[Section], **values: object) -> str:
    with pytest.raises(ValidationError) as caught:
        section.model_validate(values)
    (error,) = caught.value.errors()
    return error["msg"]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_of_every_section_is_described(section: type[BaseModel]):
    assert section.__doc__
    for name, field in section.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_a_section_refuses_keys_that_it_does_not_know(section: type[BaseModel]):
    with pytest.raises(ValidationError) as caught:
        section.model_validate({"no_such_key": 1})

    assert "extra_forbidden" in {error["type"] for error in caught.value.errors()}


def test_an_empty_section_takes_all_its_defaults():
    assert Retry.model_validate(None) == Retry.model_validate({}) == Retry()


def test_a_partial_section_takes_defaults_for_the_rest():
    assert Retry.model_validate({"max_attempts": 1}) == Retry(max_attempts=1)
    assert Retry(max_attempts=1).initial_backoff == 0.2


def test_a_section_that_was_read_can_not_be_changed():
    server = Server()

    with pytest.raises(ValidationError):
        setattr(server, "port", 1)  # noqa: B010 - the plain assignment is refused by the type checker


def test_both_spellings_of_the_openai_kind_mean_the_same():
    one = OpenAI.model_validate(ENDPOINT)
    other = OpenAI.model_validate(ENDPOINT | {"kind": "open_ai"})

    assert one == other
    assert other.kind == "openai"


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding"])
def test_headers_that_the_runner_sets_itself_are_refused(name: str):
    told = refusal(OpenAI, **ENDPOINT, headers={name: "x"})

    assert told == f"header {name} is the runner's own to set"


def test_a_key_and_an_authorization_header_exclude_each_other():
    told = refusal(OpenAI, **ENDPOINT, api_key="k", headers={"Authorization": "x"})

    assert told == "api_key and the header authorization exclude each other"
    alone = OpenAI.model_validate(ENDPOINT | {"headers": {"Authorization": "Basic x"}})
    assert alone.headers == {"Authorization": Secret("Basic x")}


@pytest.mark.parametrize("section", [Retry, Supervision])
def test_the_first_backoff_is_never_longer_than_the_longest(section: type[Section]):
    told = refusal(section, initial_backoff="20s", max_backoff="10s")

    assert told == "initial_backoff (20s) is longer than max_backoff (10s)"


@pytest.mark.parametrize("step", ["connect", "first_token", "first_step", "inter_token"])
def test_no_step_may_take_longer_than_the_whole(step: str):
    steps = dict.fromkeys(("connect", "first_token", "inter_token"), "1s") | {step: "5s"}

    told = refusal(Timeouts, **steps, total="2s")

    assert told == f"{step} (5s) is longer than total (2s)"


def test_a_first_step_that_nobody_named_is_in_no_short_totals_way():
    timeouts = Timeouts.model_validate(
        dict.fromkeys(("connect", "first_token", "inter_token"), "1s") | {"total": "2s"}
    )

    assert timeouts.first_step > timeouts.total


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:15", "mps"])
def test_the_devices_of_torch_are_understood(device: str):
    assert Torch.model_validate({"kind": "torch", "model": "m", "device": device}).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu\n", "", 0])
def test_other_devices_are_refused_with_those_there_are(device: object):
    told = refusal(Torch, kind="torch", model="m", device=device)

    assert told == "auto, cpu, cuda, cuda:N or mps"
