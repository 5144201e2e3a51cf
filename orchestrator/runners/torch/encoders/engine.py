"""The host's engine: texts of many requests, in batches by length, one pass for each.

It waits for nothing: an idle model reads what is there at once, a busy one finds a fuller window
when it comes back. What goes wrong with one text ends its request alone: a pass that fails for many
is done over in halves.
"""

import traceback
from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from orchestrator.errors import describe
from orchestrator.events import FinishReason
from orchestrator.runners.torch.encoders.answers import Row, answer
from orchestrator.runners.torch.encoders.batch import cut
from orchestrator.runners.torch.encoders.cache import ResultCache
from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.encoders.pending import Pending, Reading, Text
from orchestrator.runners.torch.wire import Completed, Encode, Encoded, Prefilled, Refused
from orchestrator.runners.torch.wire import StreamEvent as Event

WINDOW_BATCHES = 4
"""Batches that are cut from what waits: more would be sorted better, but hold newcomers up."""
SIGN_SECONDS = 1.0
"""How often those whose turn hasn't come are told that the model works."""
WARM_TEXTS = ("warm", "warming up with a few words of text")

Tell = Callable[[list[Event]], None]


class ResultCountError(Exception):
    """The model said something of more or fewer texts than it was asked of."""


class EncoderEngine:
    """All requests of one model.

    Args:
        encoder: The model.
        pending: Where its texts come from.
        tell: Gets the events of each pass.
    """

    def __init__(self, encoder: Encoder, pending: Pending, tell: Tell) -> None:
        self._encoder = encoder
        self._pending = pending
        self._tell = tell
        self._cache = ResultCache(encoder.settings.cache)
        self._signed_at = perf_counter()
        self.passes = 0
        """Texts that went through the model."""

    def warm_up(self) -> None:
        """Runs the first passes, which are slow."""
        reading = Reading(Encode(0, []))
        for text in WARM_TEXTS:
            read = self._encoder.tokenizer.encode(text)
            self._encoder.run([Text(reading, 0, read.ids, read.type_ids)])

    def serve(self) -> None:
        """Reads until there will be no more."""
        while self.step():
            pass

    def step(self) -> bool:
        """Waits for a window of texts and reads them; returns False when there are no more."""
        settings = self._encoder.settings
        taken = self._pending.take(WINDOW_BATCHES * settings.batch_tokens)
        if taken is None:
            return False
        texts, said = taken
        found, missing = self._kept(texts)
        self._tell([*said, *self._events(found)])  # nothing, if only a cancel was heard
        for batch in cut(missing, settings.batch_tokens, padded=not self._encoder.packs):
            wanted = [text for text in batch if not text.reading.dropped]
            if wanted:
                self._tell([*self._run(wanted), *self._signs()])
        return True

    def _kept(self, texts: Sequence[Text]) -> tuple[list[tuple[Text, Row]], list[Text]]:
        """Parts the texts into those with a kept result and those without."""
        found: list[tuple[Text, Row]] = []
        missing: list[Text] = []
        for text in texts:
            row = self._cache.find(text.key)
            if row is None:
                missing.append(text)
            else:
                found.append((text, row))
        return found, missing

    def _run(self, texts: Sequence[Text]) -> list[Event]:
        try:
            outputs = self._outputs(texts)
        except torch.AcceleratorError:
            raise  # the device's context is lost for everybody: only a new process has another
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises ends one text's request
            if len(texts) > 1:
                half = len(texts) // 2
                return [*self._run(texts[:half]), *self._run(texts[half:])]
            traceback.print_exception(error)
            return self._fail(texts[0], f"the model failed: {describe(error)}")
        self.passes += len(texts)
        return self._results(texts, outputs)

    def _outputs(self, texts: Sequence[Text]) -> torch.Tensor:
        """Returns a row for each text.

        Raises:
            ResultCountError: The model gave more or fewer.
        """
        outputs = self._encoder.run(texts)
        if len(outputs) != len(texts):
            raise ResultCountError(
                f"result_count_mismatch: {len(outputs)} results for {len(texts)} texts"
            )
        return outputs

    def _results(self, texts: Sequence[Text], outputs: torch.Tensor) -> list[Event]:
        finite = outputs.isfinite().flatten(1).all(1).tolist()
        rows = outputs.numpy()
        events: list[Event] = []
        good: list[tuple[Text, Row]] = []
        for text, row, sound in zip(texts, rows, finite, strict=True):
            if sound:
                self._cache.keep(text.key, row)
                good.append((text, row))
            else:
                events.extend(self._fail(text, "the model's result is not finite"))
        return [*events, *self._events(good)]

    def _events(self, results: Sequence[tuple[Text, Row]]) -> list[Event]:
        """Returns what is told of texts that have a result, together for each request."""
        told: dict[int, Encoded] = {}
        events: list[Event] = []
        for text, row in results:
            reading = text.reading
            if reading.dropped:
                continue
            encoded = told.get(reading.stream)
            if encoded is None:
                encoded = told[reading.stream] = Encoded(reading.stream, [], [])
                events.append(encoded)
            encoded.places.append(text.place)
            encoded.results.append(answer(self._encoder, reading.asked, text.place, row))
            reading.left -= 1
            if reading.left == 0:
                self._pending.drop(reading.stream)
                events.append(Completed(reading.stream, "", FinishReason.STOP, reading.tokens, 0))
        return events

    def _fail(self, text: Text, message: str) -> list[Event]:
        stream = text.reading.stream
        if not self._pending.drop(stream):
            return []  # another of its texts has failed before, or nobody wants it any more
        where = f"input[{text.place}]"
        return [Refused(stream, "failed", f"{where}: {message}", where)]

    def _signs(self) -> list[Event]:
        """Tells those who wait that the model works, for to wait is no hang."""
        if perf_counter() - self._signed_at < SIGN_SECONDS:
            return []
        self._signed_at = perf_counter()
        return [Prefilled(stream, 0, 0) for stream in self._pending.streams()]
