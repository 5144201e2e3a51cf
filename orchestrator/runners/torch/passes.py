"""How a step's tokens go through the model: in slots of one memory, or each answer by itself.

`Slots` is for the Llama family. `Plain` takes every causal model of transformers through its own
modules. Both bound what all answers together may hold, and offer the same few methods.
"""

from collections.abc import Callable, Sequence

import torch
from transformers import Cache, PreTrainedModel

from orchestrator.errors import describe
from orchestrator.runners.torch import linears
from orchestrator.runners.torch.forward import forward
from orchestrator.runners.torch.lean import Feed, Lean, UnlikeError
from orchestrator.runners.torch.memory import Memory, NoRoomError, Row
from orchestrator.runners.torch.prefixes import Prefixes
from orchestrator.runners.torch.rows import PROBES, TOLERANCE, enable, forward_rows

PROBE = PROBES[0]


class Place:
    """What one answer holds in the model's memory."""

    __slots__ = ("cache", "fed", "held", "reused", "row")

    def __init__(self, row: Row | None, fed: int, held: int) -> None:
        self.row = row
        self.held = held
        """Tokens that there is room for."""
        self.cache: Cache | None = None
        self.fed = fed
        """Tokens whose past is there."""
        self.reused = fed
        """Those of them that an earlier answer left behind."""


Feeds = Sequence[tuple[Place, Sequence[int]]]


class Slots:
    """Answers in rows of one memory, all of a step in one pass.

    Args:
        lean: The model.
        context: Tokens of the longest answer, its prompt included.
        tokens: How many all answers together may hold.
    """

    together = True
    """Whether many answers go in one pass."""

    def __init__(self, lean: Lean, *, context: int, tokens: int) -> None:
        self._lean = lean
        self._memory = Memory(lean.shape, tokens=tokens, longest=context)
        self._prefixes = Prefixes()
        self._memory.on_discard = self._prefixes.forget

    def __repr__(self) -> str:
        return f"<Slots in {self._memory}>"

    @property
    def memory(self) -> Memory:
        """Where the answers' past stands."""
        return self._memory

    def open(self, tokens: Sequence[int]) -> Place:
        """Returns a place for these tokens and one more, with what is known of their beginning.

        Raises:
            NoRoomError: Not now.
        """
        # the last token is always fed: what follows it is to be known
        source, length = self._prefixes.find(tokens[:-1])
        if source is not None:
            self._memory.touch(source)
        row = self._memory.open(len(tokens) + 1)
        # whoever made room may have taken what was found
        if source is None or len(source.tokens) < length:
            return Place(row, 0, row.slab.capacity)
        self._memory.copy(source, row, length)
        self._prefixes.note(row)
        return Place(row, length, row.slab.capacity)

    def extend(self, place: Place) -> None:
        """Makes room for one more token.

        Raises:
            NoRoomError: There is none.
        """
        if place.fed < place.held:
            return
        row = _row(place)
        place.row = self._memory.grow(row)
        place.held = place.row.slab.capacity
        self._prefixes.forget(row)
        self._prefixes.note(place.row)

    def feed(self, feeds: Feeds) -> torch.Tensor:
        """Feeds each its tokens; returns the logits after the last, (feeds, vocabulary), on CPU."""
        logits = self._lean.forward(
            self._memory, [Feed(_row(place), tokens) for place, tokens in feeds]
        )
        for place, tokens in feeds:
            place.fed += len(tokens)
            self._prefixes.note(_row(place))
        return logits

    def recover(self, place: Place) -> None:
        """A pass failed: what was there before it still is."""

    def close(self, place: Place, *, keep: bool) -> None:
        """Gives the place up; `keep` leaves what it holds to prompts that begin alike."""
        row = _row(place)
        if not keep:
            self._prefixes.forget(row)
        self._memory.close(row, keep=keep)
        place.row = None


class Plain:
    """Each answer with a cache of its own, through the modules of transformers.

    Args:
        model: Any causal one.
        tokens: How many all answers together may hold.
        context: Tokens of the longest answer, its prompt included.
    """

    def __init__(self, model: PreTrainedModel, *, context: int, tokens: int) -> None:
        self._model = model
        self._free = max(tokens, context)
        self.together = enable(model)

    def __repr__(self) -> str:
        return f"<Plain, {self._free} tokens free>"

    def open(self, tokens: Sequence[int]) -> Place:
        """See `Slots.open`; nothing is ever left behind.

        Raises:
            NoRoomError: Not now.
        """
        if self._free < len(tokens):
            raise NoRoomError
        self._free -= len(tokens)
        return Place(None, 0, len(tokens))

    def extend(self, place: Place) -> None:
        """See `Slots.extend`.

        Raises:
            NoRoomError: There is none.
        """
        if place.fed < place.held:
            return
        if self._free < 1:
            raise NoRoomError
        self._free -= 1
        place.held += 1

    def feed(self, feeds: Feeds) -> torch.Tensor:
        """See `Slots.feed`."""
        single = [(place, tokens) for place, tokens in feeds if len(tokens) == 1 and place.fed]
        # one row alone goes the plain way, which is the one that transformers' generate goes
        if not self.together or len(single) == 1:
            single = []
        rows: dict[int, torch.Tensor] = {}
        if single:
            logits = forward_rows(
                self._model,
                [tokens[0] for _, tokens in single],
                [place.fed for place, _ in single],
                [place.cache for place, _ in single if place.cache is not None],
            )
            rows = {id(place): row for (place, _), row in zip(single, logits, strict=True)}
        for place, tokens in feeds:
            if id(place) not in rows:
                rows[id(place)], place.cache = forward(self._model, tokens, place.cache)
            place.fed += len(tokens)
        return torch.stack([rows[id(place)] for place, _ in feeds])

    def recover(self, place: Place) -> None:
        """A pass failed somewhere in the caches: all is fed again."""
        place.cache = None
        place.fed = 0

    def close(self, place: Place, *, keep: bool) -> None:  # noqa: ARG002 - as `Slots.close`
        """Gives the place up."""
        self._free += place.held
        place.cache = None


Passes = Slots | Plain


def passes_for(
    model: PreTrainedModel, *, context: int, tokens: int, warn: Callable[[str], None]
) -> Passes:
    """Returns the fastest way for this model that gives the logits of transformers' own.

    Args:
        model: In evaluation mode; nobody else uses it, for it may lose its weights.
        context: Tokens of the longest answer, its prompt included.
        tokens: How many all answers together may hold.
        warn: Told of a faster way that can't be gone here.
    """
    found = _found(model, context, tokens)
    if found is None:
        return Plain(model, context=context, tokens=tokens)
    if not linears.packing(model.dtype, model.device):
        return found
    try:
        lean = Lean(model, context=context, packed=True)
    except RuntimeError as error:
        warn(f"its weights stay as they are, for packing them failed: {describe(error)}")
        return found
    for parameter in model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    return Slots(lean, context=context, tokens=tokens)


def _found(model: PreTrainedModel, context: int, tokens: int) -> Slots | None:
    """The way of the Llama family with the model's own weights, if it is one of it."""
    try:
        found = Slots(Lean(model, context=context, packed=False), context=context, tokens=tokens)
        return found if _alike(model, found) else None
    except (UnlikeError, RuntimeError):
        return None  # another make


def _alike(model: PreTrainedModel, slots: Slots) -> bool:
    # a model of another make differs in its first prompt; a pass costs a starting host a moment
    (expected, _), place = forward(model, PROBE, None), slots.open(PROBE)
    found = slots.feed([(place, PROBE)])[0]
    slots.close(place, keep=False)
    return bool((found - expected).abs().max() / expected.abs().max() < TOLERANCE)


def _row(place: Place) -> Row:
    if place.row is None:
        raise RuntimeError("a place that was given up")
    return place.row
