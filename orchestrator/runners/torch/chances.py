"""How probable a chosen token was, and which others were nearly chosen.

They are those of the model itself, before penalties, biases and temperature, as OpenAI tells them.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from orchestrator.runners.torch.wire import Chance, Told

IMPOSSIBLE = -9999.0
"""What stands for minus infinity, which JSON doesn't know."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Name = Callable[[int], str]
"""The text of one token."""


def tell(row: npt.NDArray[np.float32], token: int, alternatives: int, name: Name) -> Told:
    """Says how probable a token was, and so many others.

    Args:
        row: Logits, float32, (vocabulary,), all of them numbers.
        token: The chosen one.
        alternatives: How many of the best are told beside it.
        name: Gives a token's text.
    """
    scores = row.astype(np.float64)
    best = scores.max()
    total = best + np.log(np.exp(scores - best).sum())
    count = min(alternatives, len(scores))
    top = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.intp)
    top = top[np.argsort(-scores[top], kind="stable")]

    def chance(one: int) -> Chance:
        text = name(one)
        logprob = max(IMPOSSIBLE, float(scores[one] - total))
        return Chance(text, logprob, None if REPLACEMENT in text else list(text.encode()))

    chosen = chance(token)
    others = [chance(int(one)) for one in top]
    return Told(chosen.token, chosen.logprob, chosen.bytes, others)
