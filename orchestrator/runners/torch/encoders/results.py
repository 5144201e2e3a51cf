"""The results of one request as its texts are read, in whatever order, and the list they become."""

from collections.abc import Sequence
from typing import cast

import msgspec

from orchestrator.errors import GenerationFailedError
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.torch.wire import Encoded

_encoder = msgspec.json.Encoder()


class Results:
    """What came so far.

    Args:
        count: Texts that were asked for.
    """

    __slots__ = ("_left", "_parts")

    def __init__(self, count: int) -> None:
        self._parts: list[bytes | None] = [None] * count
        self._left = count

    def take(self, event: Encoded) -> None:
        """Takes the results of some texts in.

        Raises:
            GenerationFailedError: They aren't those of texts that are missing.
        """
        if len(event.places) != len(event.results):
            raise self._mismatch(f"{len(event.results)} results for {len(event.places)} texts")
        for place, result in zip(event.places, event.results, strict=True):
            if not 0 <= place < len(self._parts) or self._parts[place] is not None:
                raise self._mismatch(f"a second result for text {place}, or no such text")
            self._parts[place] = result
            self._left -= 1

    def all(self) -> list[bytes]:
        """Returns them in the order of the texts.

        Raises:
            GenerationFailedError: Some are missing.
        """
        if self._left:
            raise self._mismatch(
                f"{len(self._parts) - self._left} results for {len(self._parts)} texts"
            )
        return cast("list[bytes]", self._parts)  # none is left to be None

    def _mismatch(self, text: str) -> GenerationFailedError:
        return GenerationFailedError(f"result_count_mismatch: the model host sent {text}")


def text_of(request: PriorityRequest, results: Sequence[bytes]) -> str:
    """Returns the JSON of the list that answers a request."""
    if request.work is not Work.RERANK:
        return (b"[" + b",".join(results) + b"]").decode()
    scores = [float(result) for result in results]
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    top = request.extra.get("top_n")
    told: list[dict[str, object]] = []
    for place in order[: top if isinstance(top, int) else None]:
        item: dict[str, object] = {"index": place, "relevance_score": scores[place]}
        if request.extra.get("return_documents"):
            item["document"] = {"text": request.messages[place].text}
        told.append(item)
    return _encoder.encode(told).decode()
