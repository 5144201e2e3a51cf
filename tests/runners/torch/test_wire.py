import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.events import FinishReason
from orchestrator.request import SamplingParams
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Completed,
    Count,
    FrameDecoder,
    Load,
    Prefilled,
    Produced,
    Refused,
    Report,
    Shutdown,
    Step,
    Turn,
    WireError,
    command_decoder,
    frame,
    report_decoder,
)

streams = st.integers(0, 2**40)
texts = st.text(max_size=40)
events = st.one_of(
    st.builds(Produced, streams, texts, streams),
    st.builds(Prefilled, streams, st.integers(0, 99), st.integers(0, 99)),
    st.builds(Completed, streams, texts, st.sampled_from(FinishReason), streams, streams),
    st.builds(Refused, streams, st.sampled_from(["context", "invalid", "failed"]), texts, texts),
)
reports = st.lists(st.builds(Step, st.lists(events, max_size=5)), max_size=6)


@given(reports, st.data())
def test_frames_arrive_whole_however_their_bytes_are_split(
    sent: list[Step], data: st.DataObject
) -> None:
    stream = b"".join(frame(report) for report in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()

    received: list[Report] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += [report_decoder.decode(body) for body in decoder.feed(stream[start:end])]

    assert received == sent
    assert decoder.pending == 0


def test_every_command_is_the_same_on_the_other_side() -> None:
    messages: list[Turn] = [{"role": "user", "content": "日本 🦊"}]
    commands = [
        Load(TorchSettings(model="m", threads=3)),
        Admit(1, messages, SamplingParams(stop=("a", "b"), temperature=0.5), 2**63 - 1),
        Cancel(1),
        Count(2, messages, None),
        Shutdown(),
    ]

    received = [
        command_decoder.decode(body)
        for command in commands
        for body in FrameDecoder().feed(frame(command))
    ]

    assert received == commands


def test_a_frame_larger_than_allowed_is_refused_before_it_is_read() -> None:
    decoder = FrameDecoder(max_bytes=10)

    with pytest.raises(WireError, match="11 bytes"):
        list(decoder.feed((11).to_bytes(4, "big")))


def test_frames_before_a_bad_one_are_still_delivered() -> None:
    decoder = FrameDecoder(max_bytes=10)
    bodies = decoder.feed((2).to_bytes(4, "big") + b"ok" + (11).to_bytes(4, "big"))

    assert next(bodies) == b"ok"
    with pytest.raises(WireError):
        next(bodies)
