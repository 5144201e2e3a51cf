"""What a local model's deployment says about its host."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16"]
Task = Literal["embedding", "rerank", "classify"]
Pooling = Literal["mean", "cls", "last", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """What a model is for that reads texts and writes none."""

    task: Task
    pooling: Pooling | None = None
    """How the vectors of a text's tokens become one; None is as the model's own files say."""
    normalize: bool | None = None
    """Whether vectors get the length 1; None is as the model's own files say."""
    max_length: int | None = None
    """Tokens of a text that are read; None is as the model's own files say."""
    truncate: bool = True
    """Whether a longer text is cut, or else refused."""
    batch_tokens: int = 2048
    """Tokens that go through the model at once, texts of any length together."""
    cache: int = 0
    """Bytes of results that are kept for texts that come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """One model and how it is loaded; the same settings give the same host."""

    model: str
    """`package:<name>/<file.gguf>`, a `.gguf` file, a directory, or a hub id."""
    dtype: Dtype = "float32"
    """In float32 greedy and seeded text was the same alone and next to others wherever it was
    tested; in bfloat16, which is faster, it isn't. `auto` takes what the weights were saved in."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda:N` or `mps`; auto takes the first accelerator there is."""
    threads: int | None = None
    """Threads of the model's CPU work; None is all cores but one, which the gateway needs."""
    context: int | None = None
    """Tokens that a prompt and its answer may have together; None is what the model can."""
    max_batch_tokens: int = 16_384
    """Tokens that all running answers together may hold, prompts included; one of full length has
    room in any case. What is asked beyond waits, or is computed anew when there is room."""
    memory: int | None = None
    """Bytes of its own that the host may take, weights included; None is no limit. Beyond it an
    allocation fails, which ends the request or the load that needed it."""
    niceness: int = 0
    """How much of the processor the host leaves to others (`nice(2)`): 0 to 19."""
    trust_remote_code: bool = False
    """Whether code that comes with a hub model may run."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    load_timeout: float = 600.0
    """Seconds that one stage of loading (one progress message to the next) may take."""
    load_silence: float = 30.0
    """Seconds that a loading host may neither compute nor read; then it is stopped or wedged."""
    spare: bool = False
    """Whether a second process waits, all but the model loaded, to take a dead host's place."""
    deployment: str = ""
    """Its deployment's name, by which its metrics go; without one it has none."""
    encoder: EncoderSettings | None = None
    """What it is for, unless it is to chat."""


def memory_limit(settings: TorchSettings) -> str:
    """What is said of the limit beside an error that may come of it; nothing if there is none."""
    if settings.memory is None:
        return ""
    return f"; it may take {settings.memory / 2**20:.0f} MiB of memory at the most"
