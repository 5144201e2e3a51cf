"""One key of several deployments: whose limits they are, and whose turn it is."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.chaos.simulation.world import run
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.line import Line
from orchestrator.policies.limits.settings import Account, RateLimits
from orchestrator.policies.limits.sharing import SharedKeys, lowest

ONE = Account("http://p/v1", "m", "key")


def sharing(limits: RateLimits, count: int) -> list[RateLimiter]:
    keys, limiters = SharedKeys(), [RateLimiter(limits) for _ in range(count)]
    for limiter in limiters:
        keys.join(limiter, [(ONE, limits)])
    return limiters


def test_equal_accounts_have_one_limiter_and_all_others_their_own() -> None:
    accounts: Sequence[Account | None] = (
        None,
        None,
        Account("http://q/v1", "m", "key"),
        Account("http://p/v1", "n", "key"),
        Account("http://p/v1", "m", "other"),
        ONE,
        Account("http://p/v1", "m", "key"),
    )
    shared, limiters = SharedKeys(), [RateLimiter(RateLimits()) for _ in accounts]

    for limiter, account in zip(limiters, accounts, strict=True):
        shared.join(limiter, [(account, RateLimits())])

    assert len({id(limiter.keys[0]) for limiter in limiters}) == 6
    assert limiters[5].keys[0] is limiters[6].keys[0]
    assert [limiter.shares for limiter in limiters] == [False] * 5 + [True] * 2
    assert "key=" not in repr(ONE)


def test_who_takes_anothers_place_goes_on_with_what_was_sent_and_its_own_limit() -> None:
    async def main() -> tuple[bool, list[bool]]:
        shared = SharedKeys()
        old, new = RateLimiter(RateLimits(tokens_per_minute=100)), RateLimiter(RateLimits())
        shared.join(old, [(ONE, RateLimits(tokens_per_minute=100))])
        sent = old.reserve(70, 0, 0.0)
        assert sent is not None
        shared.join(new, [(ONE, RateLimits(tokens_per_minute=200))])
        got = [new.reserve(40, 0, 1.0) is not None]
        sent.spend()
        shared.leave(old)
        got += [new.reserve(131, 0, 1.0) is not None, new.reserve(130, 0, 1.0) is not None]
        return new.shares, got

    assert run(0, main) == (False, [False, False, True])


def test_the_lowest_limit_of_each_kind_counts_for_all_who_share_it() -> None:
    together = lowest(
        [
            RateLimits(requests_per_minute=60, output_tokens_per_minute=9, learn=True),
            RateLimits(requests_per_minute=30, tokens_per_minute=500, concurrency=4),
            RateLimits(concurrency=2),
        ]
    )

    assert together == RateLimits(
        requests_per_minute=30,
        tokens_per_minute=500,
        output_tokens_per_minute=9,
        concurrency=2,
        learn=True,
    )


def test_nobody_takes_the_room_that_a_large_request_of_another_one_waits_for() -> None:
    async def main() -> list[bool]:
        large, small = sharing(RateLimits(tokens_per_minute=100), 2)
        assert small.reserve(50, 0, 0.0) is not None
        got = [large.reserve(90, 0, 1.0), small.reserve(10, 0, 1.0), small.reserve(10, 0, 2.0)]
        got += [large.reserve(90, 0, 70.0), small.reserve(10, 0, 70.0)]
        return [permit is not None for permit in got]

    assert run(0, main) == [False, False, False, True, True]


def test_who_waits_no_more_lets_the_next_one_go_and_tells_it_so() -> None:
    async def main() -> tuple[list[str], float, bool]:
        first, second = sharing(RateLimits(concurrency=1), 2)
        woken: list[str] = []
        first.on_turn = lambda: woken.append("first")
        second.on_turn = lambda: woken.append("second")
        permit = first.reserve(1, 1, 0.0)
        assert permit is not None
        assert first.reserve(1, 1, 0.0) is None
        assert second.reserve(1, 1, 0.0) is None
        permit.release()
        ready_at = second.ready_at(1, 1, 0.0)
        first.withdraw()
        return woken, ready_at, second.reserve(1, 1, 0.0) is not None

    assert run(0, main) == (["first", "second"], float("inf"), True)


def test_a_more_urgent_request_of_another_one_goes_before_whoever_came_first() -> None:
    async def main() -> tuple[list[bool], list[str]]:
        batch, quick = sharing(RateLimits(concurrency=1), 2)
        woken: list[str] = []
        batch.on_turn = lambda: woken.append("batch")
        quick.on_turn = lambda: woken.append("quick")
        batch.level, quick.level = 0, 2
        permit = batch.reserve(1, 1, 0.0)
        assert permit is not None
        got = [batch.reserve(1, 1, 0.0), quick.reserve(1, 1, 0.0)]
        permit.release()
        got += [batch.reserve(1, 1, 0.0), quick.reserve(1, 1, 0.0)]
        return [permit is not None for permit in got], woken

    assert run(0, main) == ([False, False, False, True], ["quick", "batch"])


def test_who_has_risen_as_high_as_the_others_is_not_overtaken_by_their_later_ones() -> None:
    async def main() -> list[bool]:
        large, small = sharing(RateLimits(tokens_per_minute=100), 2)
        large.level, small.level = 0, 3
        got = [small.reserve(50, 0, 0.0), large.reserve(90, 0, 1.0), small.reserve(10, 0, 2.0)]
        large.level = 3
        got += [large.reserve(90, 0, 3.0), small.reserve(10, 0, 4.0), large.reserve(90, 0, 70.0)]
        return [permit is not None for permit in got]

    assert run(0, main) == [True, False, True, False, False, True]


def test_when_the_urgent_one_in_line_has_gone_whoever_is_first_now_is_told() -> None:
    async def main() -> tuple[list[str], float]:
        batch, quick = sharing(RateLimits(concurrency=1), 2)
        woken: list[str] = []
        batch.on_turn = lambda: woken.append("batch")
        batch.level, quick.level = 1, 3
        permit = quick.reserve(1, 1, 0.0)
        assert permit is not None
        assert batch.reserve(1, 1, 0.0) is None
        assert quick.reserve(1, 1, 0.0) is None
        quick.level = 0  # it was canceled, and behind it there is one that can wait
        assert quick.reserve(1, 1, 0.0) is None
        permit.release()
        return woken, batch.ready_at(1, 1, 5.0)

    assert run(0, main) == (["batch", "batch"], 5.0)


def test_a_request_stands_in_no_line_of_a_key_that_is_too_small_for_it() -> None:
    async def main() -> list[bool]:
        shared, few = SharedKeys(), RateLimits(tokens_per_minute=10)
        large, small = RateLimiter(few, [few, RateLimits(concurrency=1)]), RateLimiter(few)
        other = Account("http://p/v1", "m", "other")
        shared.join(large, [(ONE, few), (other, RateLimits(concurrency=1))])
        shared.join(small, [(ONE, few)])
        got = [large.reserve(50, 0, 0.0), large.reserve(50, 0, 0.0), small.reserve(5, 0, 0.0)]
        return [permit is not None for permit in got]

    assert run(0, main) == [True, False, True]


class LineMachine(RuleBasedStateMachine):
    """The line, against all who wait, sorted; whoever is first must know that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.waiting: dict[int, int] = {}
        self.was_first: int | None = None
        self.told: set[int] = set()
        """Who asked and was let, or was woken, by the last step."""

    def first(self) -> int | None:
        return max(self.waiting, key=lambda who: self.waiting[who], default=None)

    @rule(who=st.integers(0, 3), level=st.integers(0, 3), room=st.booleans())
    def ask(self, who: int, level: int, room: bool) -> None:
        places = list(self.waiting)
        mine = places.index(who) if who in places else len(places)
        expected = all(
            theirs < level or (theirs == level and mine < places.index(other))
            for other, theirs in self.waiting.items()
            if other != who
        )

        self.was_first, self.told = self.first(), {who} if expected else set()
        assert self.line.lets(who, level) == expected
        if expected and room:
            self.waiting.pop(who, None)
            self.line.leave(who)
        else:
            self.waiting[who] = level
            self.line.join(who, lambda: self.woken(who), level)

    @rule(who=st.integers(0, 3))
    def leave(self, who: int) -> None:
        self.was_first, self.told = self.first(), set()
        self.waiting.pop(who, None)
        self.line.leave(who)

    @rule()
    def something_is_given_back(self) -> None:
        self.was_first, self.told = None, set()
        self.line.wake()

    def woken(self, who: int) -> None:
        assert who == self.first()
        self.told.add(who)

    @invariant()
    def whoever_has_become_the_first_knows_of_it(self) -> None:
        first = self.first()
        assert first in {None, self.was_first} or first in self.told


TestLineAgainstAllWhoWait = LineMachine.TestCase
TestLineAgainstAllWhoWait.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None
)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["ask", "end", "leave"]), st.integers(0, 3)),
        max_size=60,
    )
)
def test_permits_add_up_and_nobody_who_waits_is_forgotten(
    steps: list[tuple[int, str, int]],
) -> None:
    limits = RateLimits(concurrency=2)

    async def main() -> None:
        limiters = sharing(limits, 3)
        out: list[list[Permit]] = [[], [], []]
        for who, step, level in steps:
            match step:
                case "ask":
                    limiters[who].level = level
                    permit = limiters[who].reserve(1, 1, 0.0)
                    if permit is not None:
                        out[who].append(permit)
                case "end" if out[who]:
                    out[who].pop().spend()
                case _:
                    limiters[who].withdraw()
            assert [one.outstanding for one in limiters] == [len(permits) for permits in out]
            assert sum(map(len, out)) <= 2
        for permits in out:
            for permit in permits:
                permit.release()
        served: set[int] = set()
        for _ in limiters:  # whoever is first is served, and so all are, one after the other
            for number, one in enumerate(limiters):
                permit = one.reserve(1, 1, 0.0)
                if permit is not None:
                    permit.release()
                    served.add(number)
        assert served == {0, 1, 2}

    run(0, main)


def test_a_place_in_line_is_kept_however_often_it_asks() -> None:
    line, woken = Line(), list[int]()
    for who in (1, 2, 1):
        line.join(who, lambda who=who: woken.append(who), 0)

    line.wake()
    line.leave(2)
    line.leave(1)
    line.wake()

    assert woken == [1]
    assert line.lets(3, 0)
