"""The host's engine on a tiny model, step by step."""

import re
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from transformers import PreTrainedModel

from orchestrator.events import FinishReason
from orchestrator.request import SamplingParams
from orchestrator.runners.torch import linears
from orchestrator.runners.torch.engine import PREFILL_TOKENS, Engine
from orchestrator.runners.torch.forms import Form
from orchestrator.runners.torch.lean import Lean
from orchestrator.runners.torch.linears import packing
from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.passes import Feeds, Plain, Slots, passes_for
from orchestrator.runners.torch.wire import (
    Admit,
    Completed,
    Count,
    Counted,
    Prefilled,
    Produced,
    Refused,
    StreamEvent,
    Turn,
)
from orchestrator.runners.torch.wishes import Wishes
from tests.runners.torch import tiny


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny.loaded()


@pytest.fixture
def engine(loaded: LoadedModel) -> Engine:
    return start(loaded)


def slots(loaded: LoadedModel, *, tokens: int = 16_384) -> Slots:
    packed = packing(torch.float32, torch.device("cpu"))
    lean = Lean(loaded.model, context=tiny.CONTEXT, packed=packed)
    return Slots(lean, context=tiny.CONTEXT, tokens=tokens)


def start(loaded: LoadedModel) -> Engine:
    engine = Engine(loaded, slots(loaded))
    engine.warm_up()
    return engine


def start_plain(loaded: LoadedModel) -> Engine:
    engine = Engine(loaded, Plain(loaded.model, context=tiny.CONTEXT, tokens=16_384))
    engine.warm_up()
    return engine


def admit(stream: int, text: str = "some words", seed: int = 1, **sampling: Any) -> Admit:
    return Admit(stream, [{"role": "user", "content": text}], SamplingParams(**sampling), seed)


def run(engine: Engine) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while not engine.idle:
        events += engine.step()
    return events


def text_of(events: list[StreamEvent], stream: int) -> str:
    return "".join(
        event.text
        for event in events
        if event.stream == stream and isinstance(event, Produced | Completed)
    )


def ending_of(events: list[StreamEvent], stream: int) -> Completed | Refused:
    (last,) = [
        event
        for event in events
        if event.stream == stream and isinstance(event, Completed | Refused)
    ]
    return last


def alone(
    loaded: LoadedModel, asked: Admit, made: Callable[[LoadedModel], Engine] = start
) -> tuple[str, Completed]:
    engine = made(loaded)
    assert engine.admit(asked) == []
    events = run(engine)
    return text_of(events, asked.stream), completed(events, asked.stream)


def completed(events: list[StreamEvent], stream: int) -> Completed:
    ending = ending_of(events, stream)
    assert isinstance(ending, Completed)
    return ending


def tokens_of(loaded: LoadedModel, asked: Admit) -> list[int]:
    """What the model is fed, the prompt included."""
    fed: list[int] = []

    def note(_module: object, _arguments: object, options: dict[str, Any]) -> None:
        fed.extend(options["input_ids"][0].tolist())

    hook = loaded.model.register_forward_pre_hook(note, with_kwargs=True)
    engine = start_plain(loaded)
    fed.clear()
    engine.admit(asked)
    run(engine)
    hook.remove()
    return fed


def test_a_greedy_answer_is_the_one_of_transformers_own_generate(loaded: LoadedModel) -> None:
    asked = admit(1, "some plain words", temperature=0, max_tokens=30)
    ids = loaded.backend.encode("some plain words<end>").ids
    # called by name: its annotation refuses every model
    generate = methodcaller(
        "generate", torch.tensor([ids]), max_new_tokens=30, do_sample=False, pad_token_id=0
    )
    output = generate(loaded.model)
    expected = output[0, len(ids) :].tolist()

    text, ending = alone(loaded, asked)

    assert text == loaded.backend.decode(expected).rstrip("\ufffd")
    assert ending.completion_tokens == len(expected)
    assert ending.prompt_tokens == len(ids)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(alphabet="abc dé🦊", min_size=1, max_size=200),
            st.integers(1, 12),
            st.sampled_from([0.0, 1.0]),
            st.integers(0, 6),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_an_answer_is_the_same_alone_and_in_any_company(
    asked: list[tuple[str, int, float, int]],
) -> None:
    loaded = SHARED[0]
    admits = [
        (admit(index, text, seed=index, max_tokens=limit, temperature=temperature), after)
        for index, (text, limit, temperature, after) in enumerate(asked)
    ]
    engine = start(loaded)

    events: list[StreamEvent] = []
    for step in range(7):
        for one, after in admits:
            if after == step:
                assert engine.admit(one) == []
        events += engine.step()
    events += run(engine)

    for one, _ in admits:
        text, ending = alone(loaded, one)
        assert text_of(events, one.stream) == text
        assert ending_of(events, one.stream) == ending


SHARED: list[LoadedModel] = []


@pytest.fixture(autouse=True)
def shared(loaded: LoadedModel) -> None:
    SHARED[:] = [loaded]


def test_a_step_gives_every_running_answer_one_token(engine: Engine) -> None:
    for stream in range(8):
        engine.admit(admit(stream, temperature=0, max_tokens=9))

    first = engine.step()
    second = engine.step()

    assert [event.stream for event in second] == list(range(8))
    assert {type(event) for event in second} <= {Produced, Completed}
    assert sum(isinstance(event, Prefilled) for event in first) == 8


def test_a_long_prompt_is_read_in_parts_while_others_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runners.torch.engine.STEP_SECONDS", 1000.0)
    engine.admit(admit(1, "ab", temperature=0, max_tokens=50))
    engine.step()
    engine.admit(admit(2, "x " * 150, temperature=0, max_tokens=2))

    steps = [engine.step() for _ in range(3)]

    for events in steps:
        assert any(event.stream == 1 for event in events)
    read = [event.done for events in steps for event in events if isinstance(event, Prefilled)]
    assert read[:2] == [PREFILL_TOKENS, 2 * PREFILL_TOKENS]


def test_a_short_prompt_does_not_wait_for_a_long_one_before_it(engine: Engine) -> None:
    engine.admit(admit(1, "x " * 190, temperature=0, max_tokens=2))
    engine.admit(admit(2, "ab", temperature=0, max_tokens=2))
    engine.step()

    events = engine.step()

    assert any(event.stream == 2 for event in events)


def test_a_cancelled_answer_costs_no_further_step(engine: Engine) -> None:
    engine.admit(admit(1, max_tokens=50))
    engine.admit(admit(2, "x " * 150, max_tokens=50))
    engine.step()

    engine.cancel(1)
    engine.cancel(2)
    engine.cancel(3)

    assert engine.idle
    assert engine.step() == []


def test_the_longest_answer_ends_for_its_length(engine: Engine) -> None:
    engine.admit(admit(1, temperature=0, max_tokens=5))

    ending = completed(run(engine), 1)

    assert ending.finish_reason is FinishReason.LENGTH
    assert ending.completion_tokens == 5


def test_a_stop_text_over_token_borders_ends_the_answer_before_it(
    loaded: LoadedModel, engine: Engine
) -> None:
    text, _ = alone(loaded, admit(1, temperature=0, max_tokens=20))
    middle = len(text) // 2
    stop = text[middle : middle + 5]
    before = text[: text.index(stop)]
    engine.admit(admit(2, temperature=0, max_tokens=20, stop=(stop,)))

    events = run(engine)

    assert text_of(events, 2) == before
    assert completed(events, 2).finish_reason is FinishReason.STOP


def test_an_end_token_ends_the_answer_and_is_counted(engine: Engine) -> None:
    for seed in range(15):
        engine.admit(admit(seed, seed=seed, max_tokens=60))
    events = run(engine)

    endings = [completed(events, seed) for seed in range(15)]

    stopped = [one for one in endings if one.finish_reason is FinishReason.STOP]

    assert stopped
    assert all(1 <= one.completion_tokens <= 60 for one in stopped)


def test_a_stop_token_ends_the_answer_and_is_no_part_of_its_text(
    loaded: LoadedModel, engine: Engine
) -> None:
    asked = admit(1, temperature=0, max_tokens=20)
    engine.admit(asked)
    produced = [event for event in run(engine) if isinstance(event, Produced)]
    third = produced[2].token
    before = [event.text for event in produced[: [one.token for one in produced].index(third)]]

    text, ending = alone(loaded, structs.replace(asked, wishes=Wishes(stop_token_ids=(third,))))

    assert text.rstrip("\ufffd") == "".join(before)
    assert ending.finish_reason is FinishReason.STOP
    assert ending.completion_tokens == len(before) + 1


def test_how_probable_each_token_was_is_told_if_it_is_wanted(engine: Engine) -> None:
    engine.admit(
        structs.replace(admit(1, temperature=0, max_tokens=9), wishes=Wishes(alternatives=2))
    )

    events = [event for event in run(engine) if isinstance(event, Produced | Completed)]

    ending = completed(list(events), 1)
    assert all(event.told is not None for event in events if isinstance(event, Produced))
    for event in events:
        if event.told is not None:
            best = event.told.top_logprobs[0]
            assert (best.token, best.logprob) == (event.told.token, event.told.logprob)
            assert best.logprob >= event.told.top_logprobs[1].logprob
    assert (ending.told is not None) == (ending.finish_reason is FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        (Wishes(logit_bias={5000: 1.0}), "logit_bias"),
        (Wishes(stop_token_ids=(1, 5000)), "stop_token_ids"),
    ],
)
def test_tokens_that_the_model_has_not_are_refused_by_name(
    engine: Engine, wishes: Wishes, param: str
) -> None:
    (refused,) = engine.admit(structs.replace(admit(1), wishes=wishes))

    assert isinstance(refused, Refused)
    assert (refused.kind, refused.param) == ("invalid", param)
    assert "5000" in refused.message


@pytest.mark.parametrize("max_tokens", [None, 300])
def test_a_prompt_beyond_the_context_is_refused_with_numbers(
    engine: Engine, max_tokens: int | None
) -> None:
    size = 2000 if max_tokens is None else 150

    (refused,) = engine.admit(admit(1, "x " * size, max_tokens=max_tokens))

    assert isinstance(refused, Refused)
    assert refused.kind == "context"
    assert f"{tiny.CONTEXT} tokens" in refused.message
    assert engine.idle


def test_counting_says_what_admission_would_say(engine: Engine) -> None:
    messages: list[Turn] = [{"role": "user", "content": "abc"}]

    (counted,) = engine.count(Count(1, messages, 100))
    (refused,) = engine.count(Count(2, messages, tiny.CONTEXT))

    assert counted == Counted(1, len("abc") + 1)
    assert isinstance(refused, Refused)


def test_messages_that_the_template_refuses_are_the_callers_fault(engine: Engine) -> None:
    (refused,) = engine.admit(
        Admit(1, [{"role": "assistant", "content": "x"}], SamplingParams(), 1)
    )

    assert isinstance(refused, Refused)
    assert refused.kind == "invalid"
    assert "no answers, please" in refused.message


class Poisoned(Slots):
    """Fails on one token, whoever else is in the pass."""

    def __init__(self, lean: Lean, poison: int) -> None:
        super().__init__(lean, context=tiny.CONTEXT, tokens=16_384)
        self.poison = poison

    def feed(self, feeds: Feeds) -> torch.Tensor:
        if any(self.poison in tokens for _, tokens in feeds):
            raise RuntimeError("on cue")
        return super().feed(feeds)


class PoisonedPlain(Plain):
    def __init__(self, model: PreTrainedModel, poison: int) -> None:
        super().__init__(model, context=tiny.CONTEXT, tokens=16_384)
        self.poison = poison

    def feed(self, feeds: Feeds) -> torch.Tensor:
        logits = super().feed(feeds)  # its caches have grown when it fails
        if any(self.poison in tokens for _, tokens in feeds):
            raise RuntimeError("on cue")
        return logits


@pytest.mark.parametrize("plain", [False, True])
def test_an_answer_the_model_fails_on_fails_alone_and_disturbs_nobody(
    loaded: LoadedModel, plain: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [admit(stream, "ab", temperature=0, max_tokens=12) for stream in (1, 2)]
    bad = admit(3, "ab", seed=5, max_tokens=12)
    spoken = {token for one in good for token in tokens_of(loaded, one)}
    poison = next(token for token in tokens_of(loaded, bad)[4:-1] if token not in spoken)
    clean = [alone(loaded, one) for one in good]
    passes = (
        PoisonedPlain(loaded.model, poison)
        if plain
        else Poisoned(Lean(loaded.model, context=tiny.CONTEXT, packed=True), poison)
    )
    engine = Engine(loaded, passes)

    for one in (*good, bad):
        engine.admit(one)
    events = run(engine)

    failure = ending_of(events, 3)
    assert isinstance(failure, Refused)
    assert failure.kind == "failed"
    assert "on cue" in failure.message
    assert [(text_of(events, one.stream), ending_of(events, one.stream)) for one in good] == clean
    assert "on cue" in capsys.readouterr().err


def test_a_model_that_cannot_go_in_rows_goes_one_by_one() -> None:
    loaded = tiny.loaded()
    loaded.model.set_attn_implementation("eager")
    passes = Plain(loaded.model, context=tiny.CONTEXT, tokens=16_384)
    engine = Engine(loaded, passes)

    assert not passes.together
    for stream in range(3):
        engine.admit(admit(stream, temperature=0, max_tokens=4))
    assert sum(isinstance(event, Completed) for event in run(engine)) == 3


def test_a_model_of_the_llama_family_gets_slots_and_others_their_own_modules() -> None:
    llama, other = tiny.loaded().model, tiny.loaded().model
    other.config.hidden_act = "gelu"  # what its modules do is read from its config

    assert isinstance(passes_for(llama, context=tiny.CONTEXT, tokens=1024, warn=print), Slots)
    assert isinstance(passes_for(other, context=tiny.CONTEXT, tokens=1024, warn=print), Plain)
    assert sum(one.numel() for one in llama.parameters()) == 0  # they were packed
    assert sum(one.numel() for one in other.parameters())


def test_weights_that_cannot_be_packed_stay_as_they_are_and_it_is_told(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("no memory")

    def can(*_: object) -> bool:
        return True

    told: list[str] = []
    monkeypatch.setattr(linears, "packing", can)
    monkeypatch.setattr(linears, "pack", fail)

    passes = passes_for(loaded.model, context=tiny.CONTEXT, tokens=1024, warn=told.append)

    assert isinstance(passes, Slots)
    assert told == [
        "its weights stay as they are, for packing them failed: RuntimeError: no memory"
    ]
    engine = Engine(loaded, passes)
    engine.admit(admit(1, temperature=0, max_tokens=3))
    assert completed(run(engine), 1).completion_tokens == 3


def test_more_than_the_memory_holds_is_computed_anew_and_says_the_same(
    loaded: LoadedModel,
) -> None:
    asked = [admit(stream, "ab " * 20, temperature=0, max_tokens=150) for stream in range(4)]
    asked.append(admit(4, "x " * 100, seed=3, max_tokens=60))
    engine = Engine(loaded, slots(loaded, tokens=1))  # room for one answer of full length

    for one in asked:
        engine.admit(one)
    events = run(engine)

    for one in asked:
        assert (text_of(events, one.stream), completed(events, one.stream)) == alone(loaded, one)


def test_a_prompt_that_begins_as_an_earlier_one_is_not_computed_again(
    loaded: LoadedModel, engine: Engine
) -> None:
    shared = "the same long beginning of every prompt, " * 5
    engine.admit(admit(1, shared + "one", temperature=0, max_tokens=3))
    run(engine)
    asked = admit(2, shared + "two", temperature=0, max_tokens=3)

    engine.admit(asked)
    events = run(engine)

    text, ending = alone(loaded, asked)
    found = completed(events, 2)
    assert text_of(events, 2) == text
    assert found.cached_tokens >= 190  # in tokens, a few of which are whole words
    assert ending.cached_tokens == 0
    first = next(event for event in events if isinstance(event, Prefilled))
    assert first.done == first.total


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 30), st.sampled_from([0.0, 1.0]), st.integers(0, 3))
def test_an_answer_goes_on_from_any_token_as_if_nothing_had_broken(
    after: int, temperature: float, seed: int
) -> None:
    loaded = SHARED[0]
    asked = admit(1, "some 🦊 words", seed=seed, max_tokens=30, temperature=temperature)
    engine = start(loaded)
    engine.admit(asked)
    events = run(engine)
    produced = [event for event in events if isinstance(event, Produced)]
    after = min(after, len(produced))
    tokens = tuple(event.token for event in produced[:after])
    sent = "".join(event.text for event in produced[:after])

    again = start(loaded)
    again.admit(structs.replace(asked, resume=tokens))
    rest = run(again)

    assert sent + text_of(rest, 1) == text_of(events, 1)
    assert ending_of(rest, 1) == ending_of(events, 1)


DATE = Wishes(form=Form("regex", r"\d{4}-\d{2}-\d{2} (fox|crow)*."))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 12), st.sampled_from([0.0, 1.0]), st.integers(0, 3))
def test_an_answer_of_a_form_goes_on_from_any_token_and_keeps_to_it(
    after: int, temperature: float, seed: int
) -> None:
    loaded = SHARED[0]
    asked = structs.replace(
        admit(1, seed=seed, max_tokens=60, temperature=temperature), wishes=DATE
    )
    engine = start(loaded)
    engine.admit(asked)
    events = run(engine)
    produced = [event for event in events if isinstance(event, Produced)]
    tokens = tuple(event.token for event in produced[:after])
    sent = "".join(event.text for event in produced[:after])

    again = start(loaded)
    again.admit(admit(2, temperature=0, max_tokens=9))
    again.admit(structs.replace(asked, resume=tokens))
    rest = run(again)

    assert re.match(r"\d{4}-\d{2}-\d{2} ", text_of(events, 1))
    assert sent + text_of(rest, 1) == text_of(events, 1)
    assert ending_of(rest, 1) == ending_of(events, 1)


def test_a_stop_text_ends_an_answer_of_a_form_before_the_form_does(engine: Engine) -> None:
    asked = admit(1, temperature=0, max_tokens=60, stop=("-",))

    engine.admit(structs.replace(asked, wishes=DATE))
    events = run(engine)

    assert re.fullmatch(r"\d{4}", text_of(events, 1))
    assert completed(events, 1).stop == "-"


def test_a_form_that_cannot_be_kept_to_is_refused_by_its_field(engine: Engine) -> None:
    form = Form("schema", '{"type":"nope"}')

    counted = engine.count(Count(1, admit(1).messages, 5, form))
    admitted = engine.admit(structs.replace(admit(1), wishes=Wishes(form=form)))

    (refused,) = counted
    assert admitted == [refused]
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.param) == ("invalid", "response_format")
    assert "nope" in refused.message
    assert engine.idle
