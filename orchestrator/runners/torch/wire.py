"""What crosses the socket between a deployment and its model host.

A frame is a length (4 bytes, big-endian) and that many bytes of msgpack; both sides read with the
same decoder. The parent sends one command a frame. The host answers with what became of its
loading, then with one `Step` a model step, which carries the events of all streams at once.

A stream is `Admit`, any number of `Prefilled` and `Produced`, then one `Completed` or `Refused`;
a canceled one just stops.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from orchestrator.events import FinishReason
from orchestrator.request import SamplingParams
from orchestrator.runners.torch.calls import Call, Family
from orchestrator.runners.torch.forms import Form
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.wishes import NONE, Wishes

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20


Turn = dict[str, object]
"""A message, or a tool, as a chat template takes it."""


class Load(msgspec.Struct, frozen=True, tag="load", array_like=True):
    """First command, to a spare host the second: load this model, then say `Ready`."""

    settings: TorchSettings


class Admit(msgspec.Struct, frozen=True, tag="admit", array_like=True):
    """Begin a stream."""

    stream: int
    messages: list[Turn]
    sampling: SamplingParams
    seed: int
    """The caller's, or one drawn by the parent, so that the noise can be made again."""
    resume: tuple[int, ...] = ()
    """Tokens of the answer that were sent before; it goes on after them."""
    wishes: Wishes = NONE
    tools: list[Turn] = []
    """What it may call."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """Nobody reads that stream any more."""

    stream: int


class Count(msgspec.Struct, frozen=True, tag="count", array_like=True):
    """Say how long this prompt is: `Counted`, or `Refused` if it and the answer don't fit."""

    stream: int
    messages: list[Turn]
    max_tokens: int | None
    form: Form | None = None
    """What the answer has to match; `Refused` if it can't be kept to."""
    tools: list[Turn] = []


class Encode(msgspec.Struct, frozen=True, tag="encode", array_like=True):
    """Read these texts: any number of `Encoded`, then `Completed`, or `Refused` at any time."""

    stream: int
    texts: list[str]
    query: str | None = None
    """Read beside each text, if they are to be ranked."""
    dimensions: int | None = None
    """Numbers that a vector is cut to; None is all of them."""
    base64: bool = False
    """Whether a vector is told as little-endian float32 in base64."""
    raw: bool = False
    """Whether a score is told as the model gave it, and no probability."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown", array_like=True):
    """End the process after the running step."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare", array_like=True):
    """First command to a spare host: get all but the model ready, say `Prepared`, await `Load`."""

    settings: TorchSettings


Command = Load | Prepare | Admit | Cancel | Count | Encode | Shutdown


class Loading(msgspec.Struct, frozen=True, tag="loading", array_like=True):
    """What the host is at."""

    stage: str


class Prepared(msgspec.Struct, frozen=True, tag="prepared", array_like=True):
    """A spare host has done what needs no model, and waits."""


class Warned(msgspec.Struct, frozen=True, tag="warned", array_like=True):
    """Loading goes on, but whoever runs this should know of something."""

    message: str


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed", array_like=True):
    """The model can't be loaded; the process ends."""

    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """Loaded and warm; also what is known of the model."""

    context_length: int
    vocabulary: int
    longest_token: int
    """Bytes of text in the longest token: no prompt has fewer than its bytes by this tokens."""
    dtype: str
    device: str
    parameters: int
    memory_bytes: int
    """Of the weights and buffers."""
    dimensions: int = 0
    """Numbers in a vector of a model that makes some."""
    tools: Family | None = None
    """How its chat template has calls of tools written; None takes no tools."""


class Prefilled(msgspec.Struct, frozen=True, tag="prefilled", array_like=True):
    """A part of the prompt went through the model; a sign of life."""

    stream: int
    done: int
    total: int


class Chance(msgspec.Struct, frozen=True):
    """A token and the logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None
    """Of its text; None for a part of a character."""


class Told(msgspec.Struct, frozen=True):
    """A chosen token and the most probable ones, the best first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Chance]


class Produced(msgspec.Struct, frozen=True, tag="produced", array_like=True):
    """One more token; its text may be empty while a character or stop text is incomplete."""

    stream: int
    text: str
    token: int
    told: Told | None = None
    """How probable it was, if that is wanted."""
    calls: list[Call] = []
    """Calls of tools that are whole with it."""


class Completed(msgspec.Struct, frozen=True, tag="completed", array_like=True):
    """The answer is complete; `text` is its last piece."""

    stream: int
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop: str | None = None
    """The stop text that ended it."""
    cached_tokens: int = 0
    """Of the prompt, those that an earlier one had in common with it."""
    told: Told | None = None
    """How probable the last token was, if that is wanted and it is a part of the text."""
    calls: list[Call] = []


class Counted(msgspec.Struct, frozen=True, tag="counted", array_like=True):
    """The answer to `Count`."""

    stream: int
    prompt_tokens: int


class Encoded(msgspec.Struct, frozen=True, tag="encoded", array_like=True):
    """Some of a request's texts have been read."""

    stream: int
    places: list[int]
    """Which ones, from 0."""
    results: list[bytes]
    """JSON for each of them."""


RefusalKind = Literal["context", "invalid", "failed"]


class Refused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """This stream can't go on; the others do."""

    stream: int
    kind: RefusalKind
    """The caller's prompt is too long; the caller's request is wrong; the model failed on it."""
    message: str
    param: str | None = None


StreamEvent = Prefilled | Produced | Completed | Counted | Encoded | Refused


class Step(msgspec.Struct, frozen=True, tag="step", array_like=True):
    """All that one model step brought."""

    events: list[StreamEvent]


Report = Loading | Prepared | Warned | LoadFailed | Ready | Step

_encoder = msgspec.msgpack.Encoder()
command_decoder = msgspec.msgpack.Decoder(Command)
report_decoder = msgspec.msgpack.Decoder(Report)


class WireError(Exception):
    """The bytes are no frames: the other side is not what it should be."""


def frame(message: Command | Report) -> bytes:
    """Returns the message as one frame.

    Raises:
        WireError: The message is larger than a frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(body)} bytes is larger than a frame may be")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Cuts a stream of bytes into frames, however the bytes were split on their way."""

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    @property
    def pending(self) -> int:
        """Bytes of a frame that isn't whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes the next bytes in and yields the bodies of all frames that are whole.

        Raises:
            WireError: A frame announces more bytes than allowed.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                size = int.from_bytes(self._buffer[start:body], "big")
                if size > self._max_bytes:
                    raise WireError(f"a frame of {size} bytes; at most {self._max_bytes} are taken")
                if len(self._buffer) - body < size:
                    return
                start = body + size
                yield bytes(self._buffer[body:start])
        finally:
            del self._buffer[:start]
