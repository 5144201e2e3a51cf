"""A row of the ledger, and how it stands in the spool: one line of checksum and JSON.

A line that was cut off by a full disk has no right checksum; what follows it is read again from the
next line's begin.
"""

import logging
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from orchestrator import metrics

logger = logging.getLogger(__name__)


class Row(NamedTuple):
    """One request that has ended; the order is that of the table's columns."""

    uid: str
    """Never given twice, unlike `request_id`, which a caller may choose."""
    request_id: str
    caller: str
    route: str
    deployment: str
    """Who answered, or was asked last; empty if nobody was."""
    model: str
    attempts: int
    prompt_tokens: int | None
    """None, here and below, is unknown."""
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cost_nano_usd: int | None
    """What the caller has to pay, in 10^-9 USD."""
    estimated: bool
    """Whether the tokens were counted here: the caller broke off the answer, or no usage came."""
    failed_attempts: int
    """Attempts that the caller doesn't pay for."""
    failed_tokens: int
    """What of them was seen."""
    failed_cost_nano_usd: int | None
    """What their provider will ask for, by that."""
    accepted_at_ms: int
    """Unix time in milliseconds; so is `ended_at_ms`."""
    queued_ms: int
    """Waited in queues, for permits and between attempts."""
    first_token_ms: int | None
    """From acceptance to the first token."""
    ended_at_ms: int
    outcome: str
    """`finished`, `cached` if it got another request's answer, or an error's code."""
    finish_reason: str | None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Row)
CHECKSUM_DIGITS = 8


def line_of(row: Row) -> bytes:
    """Writes a row as a line of the spool."""
    text = _encoder.encode(row)
    return b"%08x%b\n" % (zlib.crc32(text), text)


def rows_in(lines: bytes) -> Iterator[Row]:
    """Reads whole lines; leaves out what is no row.

    A line that was written whole, but by a program whose rows are others, is told and counted: one
    that can't be taken must not keep those after it, or the gateway, from going on.
    """
    for line in lines.split(b"\n"):
        checksum, text = line[:CHECKSUM_DIGITS], line[CHECKSUM_DIGITS:]
        if not text or checksum != b"%08x" % zlib.crc32(text):
            continue
        try:
            row = _decoder.decode(text)
        except msgspec.DecodeError as error:
            metrics.LEDGER_LOST.inc()
            logger.error("a row in the ledger's spool is of another kind and lost: %s", error)  # noqa: TRY400 - foreign content, no line of code
        else:
            if all(_fits(value) for value in row):
                yield row
            else:
                metrics.LEDGER_LOST.inc()
                logger.error("a row has a number that the ledger can't hold, and is lost: %s", row)


def _fits(value: object) -> bool:
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
