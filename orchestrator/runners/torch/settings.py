"""What a local model's deployment says about its host."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16"]


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


def memory_limit(settings: TorchSettings) -> str:
    """What is said of the limit beside an error that may come of it; nothing if there is none."""
    if settings.memory is None:
        return ""
    return f"; it may take {settings.memory / 2**20:.0f} MiB of memory at the most"
