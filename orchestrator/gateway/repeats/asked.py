"""What was asked, told apart by its bytes or by its meaning; of a large body a piece at a time."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from orchestrator.gateway.large_body import is_large
from orchestrator.gateway.members import Members
from orchestrator.runners.remote.large_request import encode_large
from orchestrator.runners.remote.pace import Pace

NOT_ASKED = frozenset({"stream", "stream_options", "priority", "deadline"})
"""How an answer is told and when, not what is asked."""
HASHED_BYTES = 256 << 10
_canonical = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's body."""

    body: bytes
    members: Members
    """The same, decoded."""

    async def canonical(self) -> bytes:
        """A digest that is the same whatever the order of members and the blanks are."""
        asked = {k: v for k, v in self.members.items() if k not in NOT_ASKED}
        if not is_large(self.body):
            return hashlib.sha256(_canonical.encode(asked)).digest()
        return await _digest_of(await encode_large(asked, order=True))


async def fingerprint_of(content: bytes) -> bytes:
    """A digest of exactly these bytes."""
    if len(content) <= HASHED_BYTES:
        return hashlib.sha256(content).digest()
    whole = memoryview(content)
    starts = range(0, len(content), HASHED_BYTES)
    return await _digest_of(whole[start : start + HASHED_BYTES] for start in starts)


async def _digest_of(pieces: Iterable[bytes | memoryview]) -> bytes:
    digest, pace = hashlib.sha256(), Pace()
    for piece in pieces:
        digest.update(piece)
        await pace.rest()
    return digest.digest()
