"""Going on exactly with an answer whose host died.

Each chunk says which tokens it was made of and what their noise was made from. A host that is told
both says the rest as if nothing had happened: in float32 the very text of an undisturbed run, in
bfloat16 one that follows exactly what was sent.
"""

import random

from orchestrator.events import TokenChunk
from orchestrator.reading.text import list_of
from orchestrator.request import MAX_SEED, PriorityRequest
from orchestrator.runners.torch.settings import TorchSettings

STRIDE = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio (Knuth, TAOCP 3, 6.4): seeds of neighbours share no answers."""


class LocalChunk(TokenChunk, frozen=True, gc=False):
    """A chunk that says what it was made of, for whoever goes on after it."""

    ids: tuple[int, ...] = ()
    """All tokens since the chunk before; of some the text is still held back."""
    seed: int = 0
    """What the answer's noise was made from."""


def kin(settings: TorchSettings) -> str:
    """What deployments have in common that go on with each other's answers exactly."""
    return f"{settings.model}@{settings.revision or ''} {settings.dtype} {settings.device}"


def sent_before(request: PriorityRequest, index: int = 0) -> tuple[int, ...]:
    """The tokens after which one of the answers goes on; none begins it."""
    if request.resume is None:
        return ()
    chunks = request.resume.chunks
    return tuple(
        one
        for chunk in chunks
        if isinstance(chunk, LocalChunk) and chunk.index == index
        for one in chunk.ids
    )


def called_before(request: PriorityRequest, index: int = 0) -> int:
    """How many calls of tools were sent of one of the answers."""
    if request.resume is None:
        return 0
    chunks = (chunk for chunk in request.resume.chunks if chunk.index == index)
    return sum(len(list_of((chunk.fields or {}).get("tool_calls"))) for chunk in chunks)


def seed_at(seed: int, index: int) -> int:
    """What the noise of one of several answers is made from; the first has the request's own."""
    return (seed ^ index * STRIDE) & MAX_SEED


def seed_of(request: PriorityRequest, chance: random.Random) -> int:
    """The caller's seed, or that of the answer that is gone on with, or a new one."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    if request.resume is not None:
        for chunk in request.resume.chunks:
            if isinstance(chunk, LocalChunk):
                return chunk.seed
    return chance.randint(0, MAX_SEED)
