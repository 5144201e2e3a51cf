"""Keeps an answer to its form: which tokens may follow, worked out by llguidance.

What a form allows depends on nothing but the tokens so far, so an answer that goes on at another
host is given them again and may go on.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from orchestrator.errors import describe
from orchestrator.runners.torch.forms import Form

if TYPE_CHECKING:
    # a tenth of a second, see `Grammars`
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

KEPT = 32
"""Forms that are kept read; a schema takes milliseconds to tenths of a second."""
MOST_STATES = 20_000
"""Of a form's automaton, about 2 KB each."""
MOST_SYMBOLS = 100_000
ASCII = "dw"
"""Of a regex, the classes that mean no more than they do in the patterns of a schema."""
OVERRIDES: "JsonCompileOptions" = {
    # a model that may put as much space as it likes between two words of JSON may never do else
    "whitespace_flexible": True,
    "whitespace_pattern": r"\n {0,32}| ",
    "lenient": False,
}
"""Of a schema, which may have wishes for the library in it; these go before them."""
NEVER = np.float32(-np.inf)

Row = npt.NDArray[np.float32]


class FormError(Exception):
    """A form can't be kept to; the text says why."""


class Grammar:
    """What one answer may go on with.

    Args:
        matcher: At the answer's beginning; nobody else uses it.
    """

    __slots__ = ("_matcher",)

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def masked(self, row: Row) -> Row:
        """Returns the scores with those of all tokens out of the question that may not follow.

        Args:
            row: (vocabulary,); not changed.

        Raises:
            FormError: Nothing may follow, or working it out would take too long.
        """
        mask = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        if self._matcher.is_error():  # the mask would let the answer end here
            raise FormError(f"the answer's form failed: {self._matcher.get_error()}")
        if len(mask) < len(row):  # scores of tokens that stand for nothing
            mask = np.pad(mask, (0, len(row) - len(mask)))
        return np.where(mask[: len(row)], row, NEVER)

    def take(self, token: int) -> None:
        """The answer goes on with this token; `masked` tells if it must not have."""
        self._matcher.consume_token(token)


class Grammars:
    """The forms that one model's answers were asked for.

    Args:
        tokenizer: The model's.
        vocabulary: How many tokens it has.
        ends: Those that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = sorted(ends)
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[Form, LLMatcher] = OrderedDict()

    @property
    def kept(self) -> Sequence[Form]:
        """Forms that need not be read again, the one that was asked for last at the end."""
        return tuple(self._kept)

    def begin(self, form: Form) -> Grammar:
        """Returns what an answer of this form begins with.

        Raises:
            FormError: The form can't be kept to.
        """
        matcher = self._kept.pop(form, None)
        if matcher is None:
            matcher = self._read(form)
        self._kept[form] = matcher
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return Grammar(matcher.deep_copy())

    def _read(self, form: Form) -> "LLMatcher":
        try:
            # most models are never asked for a form: without one nothing of this is loaded
            import llguidance  # noqa: PLC0415 - see above

            if self._tokens is None:
                self._tokens = llguidance.LLTokenizer(
                    self._tokenizer.to_str(), n_vocab=self._vocabulary, eos_token=self._ends
                )
            if form.kind == "regex":
                regex = llguidance.regex_to_lark(form.text, ASCII)
                grammar = llguidance.LLMatcher.grammar_from_lark(f"start: /{regex}/")
            else:
                grammar = llguidance.LLMatcher.grammar_from_json_schema(
                    form.text, overrides=OVERRIDES
                )
            limits = llguidance.LLParserLimits(
                max_lexer_states=MOST_STATES, max_grammar_size=MOST_SYMBOLS, verbose_errors=False
            )
            matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
        except (ImportError, RuntimeError, ValueError) as error:
            raise FormError(describe(error)) from error
        if matcher.is_error():
            raise FormError(matcher.get_error())
        return matcher
