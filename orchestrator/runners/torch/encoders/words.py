"""From texts to the tokens of a request, on the thread that talks to the parent.

The tokenizer itself cuts what is too long, if that is allowed.
"""

from orchestrator.errors import describe
from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.encoders.pending import Reading, Text
from orchestrator.runners.torch.wire import Encode, Refused


class RefusedError(Exception):
    """The request can't be read; carries the event that says so."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


def read(encoder: Encoder, asked: Encode) -> Reading:
    """Returns the request with the tokens of all its texts.

    Raises:
        RefusedError: A text is too long, or the tokenizer fails on it.
    """
    facts = encoder.facts
    if asked.dimensions is not None and asked.dimensions > facts.dimensions:
        message = (
            f"dimensions is {asked.dimensions}; this model's vectors have {facts.dimensions} "
            "numbers"
        )
        raise RefusedError(Refused(asked.stream, "invalid", message, "dimensions"))
    reading = Reading(asked)
    name = "input" if asked.query is None else "documents"
    for place in range(len(asked.texts)):
        text = _text(encoder, reading, place, f"{name}[{place}]")
        reading.tokens += len(text.tokens)
        reading.waiting.append(text)
    return reading


def _text(encoder: Encoder, reading: Reading, place: int, param: str) -> Text:
    asked, most = reading.asked, encoder.max_length
    query, text = asked.query, asked.texts[place]
    words = encoder.tokenizer
    try:
        read = words.encode(text) if query is None else words.encode(query, text)
    except Exception as error:
        message = f"{param}: the tokenizer failed: {describe(error)}"
        raise RefusedError(Refused(asked.stream, "failed", message, param)) from error
    if len(read.ids) > most:
        message = f"{param} has {len(read.ids)} tokens; this model reads {most}"
        raise RefusedError(Refused(asked.stream, "context", message, param))
    kinds = read.type_ids if encoder.pairs else [0] * len(read.ids)
    return Text(reading, place, read.ids, kinds)
