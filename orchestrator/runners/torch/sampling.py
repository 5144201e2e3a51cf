"""How the next token is chosen from one row of logits.

The noise is counter-based: it depends on the seed and the number of the token in the answer, on
nothing else. So an answer can be made again, alone or next to others, and no generator's state has
to outlive the process that makes it.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from orchestrator.request import SamplingParams

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's default, where the caller names none."""

Row = npt.NDArray[np.float32]

# one token's draws are far fewer than 2**64 blocks, so the counters of two steps never meet
_STEP_SHIFT = 64
_FIRST_TRY = 256


class Sampler:
    """Chooses the tokens of one answer.

    Args:
        params: The caller's wishes.
        seed: Names the noise, 0 to 2**63 - 1.
    """

    __slots__ = ("_counts", "_frequency", "_presence", "_seed", "_temperature", "_top_p")

    def __init__(self, params: SamplingParams, seed: int) -> None:
        temperature = params.temperature
        self._temperature = DEFAULT_TEMPERATURE if temperature is None else float(temperature)
        self._top_p = 1.0 if params.top_p is None else float(params.top_p)
        self._presence = params.presence_penalty or 0.0
        self._frequency = params.frequency_penalty or 0.0
        self._seed = seed
        self._counts: Counter[int] = Counter()

    def choose(self, logits: Row) -> int:
        """Returns the next token's id and counts it.

        Args:
            logits: float32, (vocabulary,); not changed.

        Raises:
            ValueError: The logits aren't numbers.
        """
        row = self._penalised(logits)
        if not np.isfinite(row.max()):  # max lets a NaN through, so it finds every one of them
            raise ValueError("the model's logits are not finite numbers")
        token = self._draw(row) if self._temperature > 0.0 else int(row.argmax())
        self.count(token)
        return token

    def count(self, token: int) -> None:
        """Takes in a token of the answer that was chosen before."""
        self._counts[token] += 1

    def _penalised(self, logits: Row) -> Row:
        if not self._counts or not (self._presence or self._frequency):
            return logits
        row = logits.copy()
        for token, count in self._counts.items():
            row[token] -= self._presence + self._frequency * count
        return row

    def _draw(self, row: Row) -> int:
        # the Gumbel trick: adding this noise and taking the best is a draw from the softmax
        scaled = row.astype(np.float64) / self._temperature
        noise = gumbel(self._seed, self._counts.total(), len(row))
        if self._top_p >= 1.0:
            return int((scaled + noise).argmax())
        tokens = nucleus(scaled, self._top_p)
        return int(tokens[(scaled[tokens] + noise[tokens]).argmax()])


def gumbel(seed: int, step: int, size: int) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, float64, (size,), for one step of one seed.

    Philox is a counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as
    1, 2, 3"); numpy promises its raw output to be the same in every version.
    """
    bits = np.random.Philox(key=seed, counter=step << _STEP_SHIFT).random_raw(size)
    uniform = (np.asarray(bits >> np.uint64(11), dtype=np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def nucleus(scaled: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.intp]:
    """The smallest set of most probable tokens whose probabilities reach `top_p`.

    Args:
        scaled: Logits over temperature, float64, (vocabulary,).
        top_p: Above 0, below 1.
    """
    weights = np.exp(scaled - scaled.max())
    goal = top_p * weights.sum()
    # sorting 49k numbers takes milliseconds; nearly always a few hundred of them are enough
    count = min(_FIRST_TRY, len(weights))
    tokens = np.argpartition(-weights, count - 1)[:count]
    if weights[tokens].sum() < goal:
        tokens = np.arange(len(weights))
    tokens = tokens[np.argsort(-weights[tokens], kind="stable")]
    reached = int(np.searchsorted(weights[tokens].cumsum(), goal))
    return tokens[: reached + 1]
