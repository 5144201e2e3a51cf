"""How the next token is chosen from one row of logits.

The noise is counter-based: it depends on the seed and the number of the token in the answer, on
nothing else. So an answer can be made again, alone or next to others, and no generator's state has
to outlive the process that makes it.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.request import SamplingParams
from orchestrator.runners.torch.grammar import Grammar
from orchestrator.runners.torch.wishes import NONE, Wishes

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
        wishes: Further ones.
        prompt: Its tokens, which count as said when it comes to repetitions.
        grammar: What the answer may go on with; None is anything.
    """

    __slots__ = (
        "_counts",
        "_frequency",
        "_grammar",
        "_penalises",
        "_presence",
        "_prompt",
        "_seed",
        "_temperature",
        "_top_p",
        "_wishes",
    )

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        wishes: Wishes = NONE,
        prompt: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        temperature = params.temperature
        self._temperature = DEFAULT_TEMPERATURE if temperature is None else float(temperature)
        self._top_p = 1.0 if params.top_p is None else float(params.top_p)
        self._presence = params.presence_penalty or 0.0
        self._frequency = params.frequency_penalty or 0.0
        self._seed = seed
        self._counts: Counter[int] = Counter()
        self._wishes = wishes
        self._grammar = grammar
        repeats = wishes.repetition_penalty != 1.0
        self._prompt = frozenset(prompt) if repeats else frozenset[int]()
        self._penalises = bool(repeats or wishes.logit_bias or self._presence or self._frequency)

    def choose(self, logits: Row) -> int:
        """Returns the next token's id and counts it.

        Args:
            logits: float32, (vocabulary,); not changed.

        Raises:
            ValueError: The logits aren't numbers.
            FormError: No token may follow.
        """
        row = self._penalised(logits)
        if self._grammar is not None:
            row = self._grammar.masked(row)
        if not np.isfinite(row.max()):  # max lets a NaN through, so it finds every one of them
            raise ValueError("the model's logits are not finite numbers")
        token = self._draw(row) if self._temperature > 0.0 else int(row.argmax())
        self.count(token)
        return token

    def count(self, token: int) -> None:
        """Takes in a token of the answer that was chosen before."""
        self._counts[token] += 1
        if self._grammar is not None:
            self._grammar.take(token)

    def _penalised(self, logits: Row) -> Row:
        if not self._penalises:
            return logits
        row = logits.copy()
        if (penalty := self._wishes.repetition_penalty) != 1.0:
            said = np.fromiter(self._prompt | self._counts.keys(), np.intp)
            # towards the improbable, on whichever side of nothing a score is
            row[said] = np.where(row[said] > 0, row[said] / penalty, row[said] * penalty)
        for token, count in self._counts.items():
            row[token] -= self._presence + self._frequency * count
        for token, bias in self._wishes.logit_bias.items():
            row[token] += bias
        return row

    def _draw(self, row: Row) -> int:
        # the Gumbel trick: adding this noise and taking the best is a draw from the softmax
        scaled = row.astype(np.float64) / self._temperature
        noise = gumbel(self._seed, self._counts.total(), len(row))
        tokens = self._allowed(scaled)
        if tokens is None:
            return int((scaled + noise).argmax())
        return int(tokens[(scaled[tokens] + noise[tokens]).argmax()])

    def _allowed(self, scaled: npt.NDArray[np.float64]) -> npt.NDArray[np.intp] | None:
        """The tokens to choose from, each bound within the one before; None is all of them."""
        tokens: npt.NDArray[np.intp] | None = None
        if 0 < self._wishes.top_k < len(scaled):
            tokens = np.argpartition(-scaled, self._wishes.top_k - 1)[: self._wishes.top_k]
        if self._top_p < 1.0:
            found = nucleus(scaled if tokens is None else scaled[tokens], self._top_p)
            tokens = found if tokens is None else tokens[found]
        if self._wishes.min_p > 0.0:
            least = scaled.max() + np.log(self._wishes.min_p)
            if tokens is None:
                return np.flatnonzero(scaled >= least)
            tokens = tokens[scaled[tokens] >= least]
        return tokens


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
