"""One answer in the making."""

from orchestrator.runners.torch.grammar import Grammar
from orchestrator.runners.torch.passes import Place
from orchestrator.runners.torch.sampling import Sampler
from orchestrator.runners.torch.text import AnswerText
from orchestrator.runners.torch.wire import Admit


class Answer:
    """One answer in the making.

    Args:
        admit: What was asked.
        prompt: Its tokens.
        max_tokens: The longest answer.
        text: Makes its text.
        grammar: What it may go on with; None is anything.
    """

    __slots__ = (
        "alone",
        "max_tokens",
        "place",
        "prompt_tokens",
        "reused",
        "sampler",
        "stream",
        "text",
        "tokens",
        "wishes",
    )

    def __init__(
        self,
        admit: Admit,
        prompt: list[int],
        max_tokens: int,
        text: AnswerText,
        grammar: Grammar | None = None,
    ) -> None:
        self.stream = admit.stream
        self.prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.text = text
        self.wishes = admit.wishes
        self.sampler = Sampler(admit.sampling, admit.seed, admit.wishes, prompt, grammar)
        self.place: Place | None = None
        """What it holds in memory; None while it waits for room."""
        self.reused: int | None = None
        """Tokens of the prompt that the memory knew; None before it first had room."""
        self.alone = False
        """Whether a pass together with others failed, so that it goes by itself."""
        self.tokens = prompt
        """Prompt and answer so far."""
        for token in admit.resume:
            # what was sent before is not sent again; what was held back still is
            self.text.add(token)
            self.sampler.count(token)
            self.tokens.append(token)

    def __repr__(self) -> str:
        return f"<Answer {self.stream}, {self.completion_tokens} tokens>"

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far, its end token included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Tokens that the model hasn't seen; one while it writes."""
        return len(self.tokens) - (0 if self.place is None else self.place.fed)
