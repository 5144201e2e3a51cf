"""Each check passes a run in which its promise holds and finds the smallest in which it doesn't."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chaos.invariants.history import History
from orchestrator.chaos.invariants.verdict import CHECKS, judge
from orchestrator.chaos.journal import Event, JournalError, Kind
from tests.chaos.invariants.notation import sketch

ACCEPTED = "0 submit r1 tokens=2\n0 accept r1 priority=1 deadline=5 depth=1\n"
DISPATCHED = ACCEPTED + "0 dequeue r1\n0 dispatch r1 @w1 #1\n0 attempt_start r1 @w1 #1\n"
STREAMING = DISPATCHED + "0 provider_start r1 @w1 #1\n0 step @w1 budget=1\n"
CLOSED = "0.5 provider_end r1 @w1 #1\n"
DONE = "0.5 terminal r1 #1 outcome=done\n"
ERROR = "terminal r1 outcome=error code=upstream_server_error scope=upstream"

QUEUED = (
    "0 accept r1 priority=1 deadline=9 depth=1 caller=ann\n"
    "0 accept r2 priority=1 deadline=9 depth=2 caller=ann\n"
    "0 accept r4 priority=1 deadline=9 depth=3 caller=ann\n"
    "0 accept r3 priority=1 deadline=9 depth=4 caller=bob\n"
)

TOLD = (
    "0 dispatch r1 @w1 #1\n0 dispatch r2 @w2 #2\n{later} key_told key=0\n"
    "1.1 key_limited r2 #2 key=0 used_up=true\n"
)
LEARNS = "0 deployment slots=2 learns=true permits_burst=2 permits_per_second=1\n"
PAIR = (
    "0 deployment deployment=a slots=2 queue_capacity=4 account=k aging=1\n"
    "0 deployment deployment=b slots=2 queue_capacity=4 account=k aging=1\n"
    "0 worker_start @a1 deployment=a\n0 attempt_end r0 @a1 #0 deployment=a verdict=none\n"
    "0 accept r1 deployment=a priority=2 deadline=9 depth=1\n"
    "{came} accept r2 deployment=b priority=1 deadline=9 depth=1\n"
    "{at} dispatch r2 @b1 #2 deployment=b\n"
)
UNTOLD = "0 deployment slots=2 learns=true\n"

HEALTHY = """
0 run seed=1
0 engine_start generation=1
0 worker_start @w1
0 submit r1 tokens=2
0 accept r1 priority=1 deadline=5 depth=1
0 dequeue r1
0 dispatch r1 @w1 #1
0 attempt_start r1 @w1 #1
0 provider_start r1 @w1 #1
0 step @w1 budget=1
0.4 fault_landed r1 text=reset~#1
0.5 provider_end r1 @w1 #1
0.5 retry r1 not_before=0.7 depth=1
0.6 late r1 @w1 #1
0.7 dequeue r1
0.7 dispatch r1 @w1 #2
0.7 attempt_start r1 @w1 #2
0.7 provider_start r1 @w1 #2
0.7 step @w1 budget=1
1.6 token r1 #2
1.6 step @w1 budget=1
1.6 read r1 index=0
2.5 token r1 #2
2.5 terminal r1 #2 outcome=done
2.5 provider_end r1 @w1 #2
2.6 read r1 index=1
2.6 end_read r1 outcome=done
3 gauge name=idle_slots value=2 expected=2
"""

GOOD: dict[str, str] = {
    "I1": STREAMING + CLOSED + DONE + "0.6 read r1 index=0\n0.6 end_read r1 outcome=done",
    "I2": STREAMING
    + "0 read r1 index=0\n0.1 read r1 index=1\n"
    + CLOSED
    + DONE
    + "1 end_read r1 outcome=done",
    "I3": ACCEPTED + "5.2 terminal r1 outcome=error",
    "I4": STREAMING
    + CLOSED
    + "1 provider_start r1 @w1 #2\n2 worker_dead @w1\n4 provider_end r1 @w1 #2\n"
    + "5 gauge name=streams value=0 expected=0\n5 gauge name=queue value=3",
    "I5": "0 breaker state=open\n1 breaker state=half-open\n1 admit r1 @w1 #2 state=half-open\n"
    "1.1 attempt_end r9 @w2 #1 verdict=failure\n2 breaker state=closed\n"
    "2 attempt_end r1 @w1 #2 verdict=success",
    "I5b": "0 admit r1 @w1 #1 state=half-open\n0 attempt_end r1 @w1 #1 verdict=none\n"
    "0 admit r2 @w1 #2 state=half-open\n1 breaker state=closed\n1 admit r3 @w2 #3 state=closed",
    "I5c": "0 breaker state=open\n1 breaker state=half-open\n1.1 breaker state=open\n"
    "3.1 breaker state=half-open\n3.2 breaker state=closed\n6 breaker state=open\n"
    "7 breaker state=half-open",
    "I6": "0 engine_start generation=1\n1 poison cause=crash\n1 ready ready=false\n"
    "2 engine_start generation=3\n2 ready ready=true\n3 poison cause=crash",
    "I6b": ACCEPTED
    + "1 poison cause=crash\n1 accept r1 deployment=b priority=1 deadline=5 depth=1\n"
    + "2 reject r2 code=engine_unhealthy depth=0\n3 engine_start\n"
    + "3 accept r3 priority=1 deadline=9 depth=1\n4 terminal r1 outcome=done",
    "I7": "0 submit r1\n0.04 reject r1 code=queue_full depth=2\n"
    "1 accept r2 priority=1 deadline=5 depth=2\n1 retry r3 not_before=2 depth=4\n"
    "2 submit r2\n2 accept r2 priority=1 deadline=9 depth=1\n"
    "5 reject r2 code=engine_unhealthy depth=0",
    "I8": STREAMING + "0.4 cancel r1\n" + CLOSED + "0.5 terminal r1 outcome=canceled",
    "I9": STREAMING + "0.9 step @w1 budget=1\n1.9 kill @w1\n1.9 worker_dead @w1",
    "I10": STREAMING + "1 retry r1 not_before=1 depth=1\n1 attempt_start r1 @w1 #2",
    "I11": STREAMING + "1 read r1 index=0\n2 attempt_start r1 @w1 #2 resume=true",
    "I12": STREAMING
    + "0.3 fault_landed r1 text=reset~#7\n"
    + f"0.5 {ERROR} cause=ReadError:~reset~#7 attempts=1",
    "I12b": "0 fault_landed text=crash~#7\n0 worker_dead @w1 cause=OSError:~crash~#7\n"
    "0 worker_dead @w2 cause=CancelledError deliberate=true\n0 poison cause=OSError:~crash~#7",
    "I13": "0 provider_start r1 @w1\n0 provider_start r2 @w2\n1 provider_start r3 @w1",
    "I13b": "0 key_paused key=1 seconds=3\n0.05 provider_start r1 @w1 #1 key=1\n"
    "1 provider_start r2 @w2 #2 key=0\n3 provider_start r3 @w3 #3 key=1",
    "I15": STREAMING + "0 token r1 #1\n0.1 late r1 #0\n0.5 terminal r1 #1 outcome=done",
    "I16": ACCEPTED
    + "0 accept r2 priority=2 deadline=5 depth=2\n0 dequeue r2\n0 dispatch r2 @w1 #1\n"
    + "1 retry r2 not_before=2 depth=2\n1 dequeue r1\n1 dispatch r1 @w1 #2\n"
    + "1.5 accept r3 priority=1 deadline=5 depth=2\n"
    + "2 dequeue r2\n2 dispatch r2 @w1 #3\n2 dequeue r3\n2 dispatch r3 @w2 #4",
    "I25": "0 dispatch r1 @w1 #1 limit=2\n0 dispatch r2 @w2 #2 limit=2\n"
    "1 terminal r1 outcome=done\n1 dispatch r3 @w1 #3 limit=2\n"
    "2 worker_dead @w2\n2 dispatch r4 @w1 #4 limit=2\n"
    # its hedge still waits elsewhere when its first attempt is over
    "3 accept r5 deployment=b\n3 accept r5 deployment=c hedge=true\n"
    "3 dispatch r5 @b1 #5 deployment=b limit=1\n4 attempt_end r5 @b1 #5 deployment=b\n"
    "4 dispatch r6 @b1 #6 deployment=b limit=1\n"
    # it meets an open circuit, and its first attempt goes on elsewhere
    "5 terminal r6 outcome=done\n5 accept r7 deployment=c\n5 accept r7 deployment=b hedge=true\n"
    "5 dispatch r7 @b1 #7 deployment=b limit=1\n5 attempt_start r7 @b1 #7 deployment=b\n"
    "6 dispatch r8 @b1 #8 deployment=b limit=1",
    "I23": QUEUED
    + "1 dequeue r1\n1 dispatch r1 @w1 #1\n2 dequeue r3\n2 dispatch r3 @w1 #2\n"
    + "3 dequeue r2\n3 dispatch r2 @w1 #3",
    "I24": "0 accept r1 priority=0 deadline=9 depth=1\n0 accept r2 priority=0 deadline=9 depth=2\n"
    "1 shed r2 by=r3\n1 accept r3 priority=2 deadline=9 depth=2\n1 dequeue r2\n"
    "1 accept r2 deployment=b priority=0 deadline=9 depth=1\n1 dispatch r2 @w9 #1 deployment=b",
    "I26": "0 accept r1 deployment=a\n1 accept r1 deployment=b\n1 accept r2 deployment=a",
    "I31": "0 reload number=1\n1 terminal r1 outcome=error code=queue_full",
    "I27": "0 submit r1 attempts=1\n0 dispatch r1 @a #1\n0 attempt_start r1 @a #1\n"
    "1 dispatch r1 @b #2 hedge=true\n1 attempt_start r1 @b #2",
    "I28": "0 submit r1 route=m hedge_share=0.5\n1 accept r1 deployment=b hedge=true\n"
    "2 submit r2 route=m hedge_share=0.5\n3 accept r2 deployment=b hedge=true",
    "I29": TOLD.format(later="1") + "2 dispatch r3 @w1 #3\n90 dispatch r4 @w1 #4\n"
    "90.1 key_limited r4 #4 key=0 used_up=true",
    "I30": LEARNS + "0 dispatch r1 @w1 #1\n0.1 dispatch r2 @w2 #2\n0.1 provider_start r1 #1\n"
    "0.1 provider_start r2 #2\n0.1 key_limited r1 #1 key=0\n0.2 key_limited r2 #2 key=0\n"
    "0.2 dispatch r3 @w1 #3\n0.2 provider_start r3 #3\n2.1 dispatch r4 @w1 #4\n"
    "2.1 provider_start r4 #4",
    # its slot is idle too shortly; then r2 has risen as far; then its slot is dead
    "I32": PAIR.format(came=0.02, at=0.02)
    + PAIR.format(came=0.02, at=2.5)
    + "2.6 worker_dead @a1 deployment=a\n2.6 accept r3 deployment=b priority=1 deadline=9 depth=1\n"
    "3 dispatch r3 @b1 #3 deployment=b",
    "I17": "0 submit r1 reads=never\n1 terminal r1 outcome=error code=slow_consumer\n"
    "0 submit r2\n1 terminal r2 outcome=error code=deadline_exceeded",
    "I18": "0 engine_start generation=1\n1 supervisor_dead\n1 poison cause=stopped",
    "I22": "0 submit r1 must_succeed=true\n1 terminal r1 outcome=done\n"
    "1 submit r2\n1 terminal r2 outcome=error",
    "I19": "0 worker_dead @a\n1 worker_dead @b\n1 worker_dead @x deliberate=true\n"
    "1 worker_start @c\n11.1 worker_dead @c\n11.2 worker_dead @d\n11.3 worker_dead @e\n"
    "11.3 poison cause=crash\n11.3 worker_dead @f\n12 engine_start\n12 worker_start @g",
}

BAD: list[tuple[str, str, str]] = [
    ("I1", ACCEPTED, "never ended"),
    ("I1", STREAMING + CLOSED + DONE + DONE, "terminal at 0.5 s after its ending"),
    ("I1", STREAMING + CLOSED + DONE + "1 token r1 #1", "token at 1.0 s after"),
    ("I1", STREAMING + CLOSED + DONE + "1 end_read r1 outcome=error", "was told error"),
    ("I1", ACCEPTED + DONE + "1 end_read r1 outcome=done\n" * 2, "given 2 endings"),
    (
        "I1",
        ACCEPTED + DONE + "1 end_read r1 outcome=done\n1 read r1 index=0",
        "a token after the ending",
    ),
    ("I2", ACCEPTED + "0 read r1 index=0\n0 read r1 index=2", "token 2 came in place 1"),
    ("I2", ACCEPTED + "0 read r1 index=0\n0 read r1 index=0", "token 0 came in place 1"),
    (
        "I2",
        ACCEPTED + "0 read r1 index=0\n" + DONE + "1 end_read r1 outcome=done",
        "done after 1 of 2",
    ),
    ("I3", ACCEPTED + "5.3 terminal r1 outcome=error", "ended at 5.3 s"),
    ("I3", ACCEPTED, "never ended"),
    ("I4", STREAMING, "never ended"),
    (
        "I4",
        STREAMING + "0.2 provider_start r2 @w1 #2\n0.3 provider_end r2 @w1 #2\n" + CLOSED,
        "second stream",
    ),
    ("I4", "1 gauge name=permits value=-1", "permits was -1"),
    ("I4", "1 gauge name=idle value=1 expected=2", "idle was 1 at rest, not 2"),
    ("I5", "0 breaker state=half-open", "from closed to half-open"),
    ("I5", "0 breaker state=open\n0 admit r1 @w1 #1 state=open", "through an open breaker"),
    (
        "I5",
        (
            "0 admit r1 @w1 #1 state=closed\n0 breaker state=open\n1 breaker state=half-open\n"
            "2 breaker state=open\n2 attempt_end r1 @w1 #1 verdict=failure"
        ),
        "of an older era",
    ),
    (
        "I5",
        (
            "0 admit r1 @w1 #1 state=closed\n0 breaker state=open\n"
            "0 attempt_end r1 @w1 #1 verdict=none"
        ),
        "verdict none moved it to open",
    ),
    (
        "I5b",
        "0 admit r1 @w1 #1 state=half-open\n0 admit r2 @w2 #2 state=half-open",
        "probe 2 at w2",
    ),
    (
        "I5c",
        (
            "0 breaker state=open\n1 breaker state=half-open\n1.1 breaker state=open\n"
            "2.1 breaker state=half-open"
        ),
        "had to be open for 2 s",
    ),
    (
        "I13b",
        "0 key_paused key=1 seconds=3\n2 provider_start r1 @w1 #1 key=1",
        "with a key that pauses until 3 s",
    ),
    (
        "I6",
        "0 engine_start generation=1\n1 poison cause=crash\n1 engine_start generation=1",
        "began again",
    ),
    ("I6", "0 poison cause=crash\n1 poison cause=crash", "which it was before"),
    ("I6", "0 poison cause=crash\n1 ready ready=true", "that it is ready"),
    ("I6b", ACCEPTED + "1 poison cause=crash\n1.2 terminal r1 outcome=error", "waited until 1.2"),
    ("I6b", ACCEPTED + "1 poison cause=crash", "still waited at the end"),
    ("I6b", "1 poison cause=crash\n1 accept r1 priority=1 deadline=5 depth=1", "accept at 1.0 s"),
    ("I6b", "1 poison cause=crash\n1 dispatch r1 @w1 #1", "dispatch at 1.0 s"),
    ("I6b", "1 poison cause=crash\n1 reject r1 code=queue_full depth=2", "queue_full"),
    ("I7", "0 accept r1 priority=1 deadline=5 depth=3", "3 waited"),
    ("I7", "0 queue_depth depth=5", "5 waited"),
    ("I7", "0 submit r1\n0.2 reject r1 code=engine_unhealthy depth=0", "refused at 0.2 s"),
    ("I7", "0 submit r1\n0 reject r1 code=queue_full depth=1", "by a queue of 1"),
    ("I8", ACCEPTED + "0.1 cancel r1\n0.4 terminal r1 outcome=canceled", "didn't end at once"),
    (
        "I8",
        ACCEPTED + "0 cancel r1\n0 terminal r1 outcome=canceled\n0 provider_start r1 @w1 #1",
        "provider_start at 0.0 s, canceled",
    ),
    (
        "I8",
        STREAMING + "0 cancel r1\n0 terminal r1 outcome=canceled\n" + CLOSED,
        "still open 0.25 s later",
    ),
    ("I9", STREAMING + "0.9 kill @w1", "after progress, of 1 s"),
    ("I9", "0.9 kill @w1", "no step running"),
    ("I9", STREAMING + "1.2 provider_end r1 @w1 #1", "nobody noticed"),
    ("I10", STREAMING + "1 attempt_start r1 @w1 #2", "no retry allows"),
    ("I10", STREAMING + "1 provider_start r1 @w1 #1\n1 retry r1\n" * 11, "11 retries in 10 s"),
    ("I11", STREAMING + "1 read r1 index=0\n2 attempt_start r1 @w1 #2", "after a token was read"),
    ("I12", STREAMING + f"1 {ERROR} cause=ReadError attempts=1", "nothing had broken"),
    ("I12", STREAMING + f'1 {ERROR} cause="" attempts=1', "no cause"),
    (
        "I12",
        STREAMING + f"0 fault_landed r1 text=reset~#7\n1 {ERROR} cause=RetryError attempts=1",
        "what broke was",
    ),
    (
        "I12",
        STREAMING + f"0 fault_landed @w1\n1 {ERROR} cause=hung attempts=3",
        "tells 3 attempts, there were 1",
    ),
    (
        "I12",
        STREAMING + "0 fault_landed r1 #1 text=reset~#7\n0 attempt_end r1 @w1 #1 verdict=failure\n"
        "1 terminal r1 outcome=error"
        " code=circuit_open scope=upstream cause=reset~#7 attempts=1",
        "tells only that the circuit is open",
    ),
    ("I12b", "0 fault_landed text=crash\n1 worker_dead @w1 cause=TypeError", "'TypeError', unp"),
    ("I12b", "1 poison cause=TypeError", "poison at 1.0 s"),
    (
        "I13",
        "0 provider_start r1 @w1\n0 provider_start r2 @w2\n0.9 provider_start r3 @w1",
        "beyond 2 + 1 per second",
    ),
    ("I15", STREAMING + "1 dispatch r1 @w2 #2\n1 token r1 #1", "token of old attempt 1"),
    ("I15", STREAMING + "1 retry r1 not_before=2\n1 token r1 #1", "token of old attempt 1"),
    ("I15", STREAMING + "1 dispatch r1 @w2 #2\n1 terminal r1 #1 outcome=done", "terminal of old"),
    (
        "I16",
        ACCEPTED + "0 accept r2 priority=2 deadline=5 depth=2\n0 dequeue r1\n0 dispatch r1 @w1 #1",
        "overtaken by r1",
    ),
    (
        "I16",
        ACCEPTED + "0 accept r2 priority=1 deadline=5 depth=2\n0 dequeue r2\n0 dispatch r2 @w1 #1",
        "overtaken by r2",
    ),
    ("I16", "0 dispatch r1 @w1 #1", "never accepted"),
    (
        "I23",
        QUEUED
        + "1 dispatch r1 @w1 #1\n2 dispatch r2 @w1 #2\n3 dispatch r4 @w1 #3\n4 dispatch r3 @w1 #4",
        "'bob' waited at 3.0 s for 3 turns of 'ann'",
    ),
    (
        "I25",
        "0 dispatch r1 @w1 #1 limit=1\n1 dispatch r2 @w2 #2 limit=1",
        "was one of 2 at 1.0 s, the limit was 1",
    ),
    ("I24", "1 shed r1 by=r2\n1 accept r2 priority=2 deadline=9 depth=2", "waited no more"),
    (
        "I24",
        ACCEPTED
        + "0 dispatch r1 @w1 #1\n1 retry r1 not_before=1 depth=1\n"
        + "2 shed r1 by=r2\n2 accept r2 priority=2 deadline=9 depth=1",
        "had been tried",
    ),
    (
        "I24",
        ACCEPTED + "1 shed r1 by=r2\n1 accept r2 priority=1 deadline=9 depth=1",
        "for r2, which is no more urgent",
    ),
    (
        "I24",
        ACCEPTED
        + "0 accept r2 priority=0 deadline=9 depth=2\n"
        + "1 shed r1 by=r3\n1 accept r3 priority=2 deadline=9 depth=2",
        "although r2 is less urgent",
    ),
    (
        "I24",  # that another one of its class was tried is no excuse: its caller has no more
        ACCEPTED
        + "0 accept r2 priority=0 deadline=9 depth=2 caller=ann\n"
        + "0 accept r4 priority=0 deadline=9 depth=3 caller=ann\n"
        + "0 accept r5 priority=0 deadline=9 depth=4 caller=bob\n0 attempt_start r5 @w1 #1\n"
        + "1 shed r1 by=r3\n1 accept r3 priority=2 deadline=9 depth=2",
        "although r4 is less urgent",
    ),
    (
        "I24",
        ACCEPTED
        + "1 shed r1 by=r3\n1 accept r3 priority=2 deadline=9 depth=1\n2 dispatch r1 @w1 #1",
        "shed and dispatched",
    ),
    ("I26", "0 accept r1 deployment=a\n1 accept r1 deployment=a", "came to a again at 1"),
    (
        "I27",
        "0 submit r1 attempts=1\n0 attempt_start r1 @a #1\n1 attempt_start r1 @b #2",
        "made 2 attempts of 1",
    ),
    (
        "I27",
        "0 submit r1 attempts=9\n0 dispatch r1 @a #1 hedge=true\n1 dispatch r1 @b #2 hedge=true",
        "was hedged 2 times",
    ),
    (
        "I28",
        (
            "0 submit r1 route=m hedge_share=0.5\n0 submit r2 route=m hedge_share=0.5\n"
            "0 submit r3 route=m hedge_share=0.5\n1 accept r1 deployment=b hedge=true\n"
            "1 accept r2 deployment=b hedge=true\n1 accept r3 deployment=b hedge=true\n"
            "1 accept r1 deployment=c hedge=true"
        ),
        "beyond the budget of m",
    ),
    (
        "I31",
        "0 reload number=1\n1 terminal r1 outcome=error code=draining",
        "for its deployment was stopping",
    ),
    (
        "I29",
        TOLD.format(later="1") + "2 dispatch r3 @w1 #3\n2 key_limited r3 #3 key=0 used_up=true",
        "permitted at 2.0 s, refused at 2.0 s",
    ),
    (
        "I30",
        LEARNS + "0 dispatch r1 @w1 #1\n0.1 key_limited r1 #1 key=0\n"
        "0.2 dispatch r3 @w1 #3\n0.2 provider_start r3 #3\n1 dispatch r4 @w1 #4\n"
        "1 provider_start r4 #4",
        "permitted at 1.0 s, too soon after 0.2 s",
    ),
    (
        "I30",
        UNTOLD + "0.1 dispatch r1 @w1 #1\n0.1 provider_start r1 #1\n0.5 key_limited r1 #1 key=0\n"
        "0.6 dispatch r2 @w1 #2\n0.6 provider_start r2 #2\n1.5 dispatch r3 @w1 #3\n"
        "1.5 provider_start r3 #3",
        "permitted at 1.5 s, too soon after 0.6 s",
    ),
    ("I32", PAIR.format(came=0.5, at=0.5), "overtaken at a key by r2 at 0.5 s"),
    ("I17", "0 submit r1\n1 terminal r1 outcome=error code=slow_consumer", "had read at once"),
    ("I18", "0 engine_start generation=1\n1 supervisor_dead", "was not poisoned"),
    ("I18", "1 supervisor_dead\n3 engine_start generation=2", "served at 3.0 s without"),
    ("I22", "0 submit r1 must_succeed=true\n1 terminal r1 outcome=canceled", "got a cancel"),
    ("I19", "0 worker_dead @a\n1 worker_dead @b\n2 worker_dead @c", "not poisoned"),
    (
        "I19",
        "0 worker_dead @a\n1 worker_dead @b\n2 worker_dead @c\n2 worker_start @d\n2 poison",
        "d started at 2.0 s",
    ),
    (
        "I19",
        "0 worker_dead @a\n1 worker_dead @b\n2 worker_dead @c\n3 poison",
        "over budget since 2.0 s",
    ),
]


def test_a_healthy_run_violates_no_invariant_at_all():
    assert judge(sketch(HEALTHY)) == []


@pytest.mark.parametrize("check", CHECKS)
def test_a_run_that_keeps_the_promise_passes(check: str):
    history = History(sketch(GOOD[check]))

    assert CHECKS[check](history) == []


@pytest.mark.parametrize(("check", "text", "expected"), BAD)
def test_a_run_that_breaks_the_promise_is_found(check: str, text: str, expected: str):
    violations = CHECKS[check](History(sketch(text)))

    assert [violation.id for violation in violations] == [check]
    assert expected in violations[0].text


def test_every_check_has_a_run_that_breaks_it():
    assert {check for check, _, _ in BAD} == set(CHECKS) == set(GOOD)


@pytest.mark.parametrize(
    "ending",
    ["2 kill @w1\n2 provider_end r1 @w1 #1", "2 worker_dead @w1\n2 provider_end r1 @w1 #1"],
    ids=["killed", "dead"],
)
def test_a_hung_worker_may_keep_a_canceled_stream_until_its_lease_is_over(ending: str):
    canceled = "1 step @w1 budget=1\n1 cancel r1\n1 terminal r1 outcome=canceled\n"

    assert CHECKS["I8"](History(sketch(STREAMING + canceled + ending))) == []


def test_a_stream_that_cannot_be_canceled_is_excused_but_must_end():
    text = DISPATCHED + "0 provider_start r1 @w1 #1 zombie=true\n0 step @w1 budget=1\n"
    text += "0.1 cancel r1\n0.1 terminal r1 outcome=canceled\n"

    assert judge(sketch(text + "2.1 provider_end r1 @w1 #1")) == []
    assert [violation.id for violation in judge(sketch(text))] == ["I4"]


def test_an_error_of_a_poisoned_engine_tells_what_poisoned_it():
    text = "0 poison cause=OSError:~card~lost\n0 reject r1 code=engine_unhealthy depth=0\n"
    ending = "0 terminal r1 outcome=error code=engine_unhealthy scope=engine attempts=0 cause="

    assert CHECKS["I12"](History(sketch(text + ending + "OSError:~card~lost"))) == []
    assert CHECKS["I12"](History(sketch(text + ending + "unhealthy"))) != []


def test_all_who_die_of_one_host_count_as_one_death():
    deaths = "".join(f"0 worker_dead @{worker} fault=1\n" for worker in "abcdefgh")

    assert CHECKS["I19"](History(sketch(deaths + "1 worker_start @a2"))) == []


def test_an_attempt_that_runs_may_reach_its_provider_while_the_cancel_is_on_its_way():
    text = DISPATCHED + "0 cancel r1\n0 terminal r1 outcome=canceled\n"
    text += "0.01 provider_start r1 @w1 #1\n0.01 provider_end r1 @w1 #1"

    assert judge(sketch(text)) == []


def test_a_retry_of_what_never_reached_the_provider_costs_nothing():
    refused = "1 retry r1 not_before=1 depth=1\n1 attempt_start r1 @w1 #2\n" * 20

    assert CHECKS["I10"](History(sketch(DISPATCHED + refused))) == []


def test_a_retry_here_is_free_though_its_hedge_reached_another_provider():
    deployments = "".join(
        f"0 deployment deployment={name} slots=2 queue_capacity=9\n" for name in "ab"
    )
    hedged = "0 accept r1 deployment=a\n0 accept r1 deployment=b hedge=true\n"
    hedged += "0 provider_start r1 @b #2 deployment=b\n"
    refused = "1 retry r1 deployment=a\n1 attempt_start r1 @a #3 deployment=a\n" * 20
    reached = "1 provider_start r1 @a #3 deployment=a\n1 retry r1 deployment=a\n" * 20

    assert CHECKS["I10"](History(sketch(deployments + hedged + refused))) == []
    assert CHECKS["I10"](History(sketch(deployments + hedged + reached))) != []


def test_a_hedge_that_waits_for_its_permit_was_paid_for_when_it_was_accepted():
    def submits(first: int) -> str:
        return "".join(f"0 submit r{n} route=m hedge_share=0.5\n" for n in range(first, first + 20))

    def told(kind: str, first: int, count: int) -> str:
        return "".join(f"0 {kind} r{n} #{n} hedge=true\n" for n in range(first, first + count))

    saved_and_saved_again = submits(0) + told("accept", 0, 8) + submits(20)
    spent = told("dispatch", 0, 8) + told("accept", 20, 10) + told("dispatch", 20, 10)

    assert CHECKS["I28"](History(sketch(saved_and_saved_again + spent))) == []
    assert (
        CHECKS["I28"](History(sketch(saved_and_saved_again + spent + told("accept", 30, 2)))) != []
    )


@pytest.mark.parametrize(
    "instead",
    [
        "0 breaker deployment=a state=open",
        "0.4999 breaker deployment=a state=closed",
        "0 poison deployment=a cause=crash\n0 attempt_end r0 @a1 #0 deployment=a verdict=none",
        "0 accept r2 deployment=a priority=2 deadline=9 depth=2\n0 dequeue r1 deployment=a",
    ],
)
def test_who_can_start_nothing_itself_is_not_overtaken_at_a_key(instead: str):
    *before, last = PAIR.format(came=0.5, at=0.5).splitlines()
    overtaken, right = "\n".join([*before, last]), "\n".join([*before, instead, last])

    assert CHECKS["I32"](History(sketch(overtaken))) != []
    assert CHECKS["I32"](History(sketch(right))) == []


def test_an_event_that_lacks_what_its_kind_needs_is_an_error_of_the_journal():
    with pytest.raises(JournalError, match="names no request"):
        judge(sketch("0 accept priority=1 deadline=5 depth=1"))
    with pytest.raises(JournalError, match="names no worker"):
        judge(sketch("0 kill"))
    with pytest.raises(JournalError, match="no settings of deployment 'b'"):
        judge(sketch("0 queue_depth deployment=b depth=1"))


@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=25),
    rate=st.sampled_from([0.5, 1.0, 4.0]),
    burst=st.integers(1, 4),
)
def test_the_bucket_overflows_exactly_if_some_window_is_too_full(
    gaps: list[int], rate: float, burst: int
):
    times = [sum(gaps[: place + 1]) / 8 for place in range(len(gaps))]
    starts = [Event(t, Kind.PROVIDER_START, "r", None, "w") for t in times]
    settings = f"0 deployment permits_burst={burst} permits_per_second={rate}"

    overfull = burst < 1 or any(
        right - left + 1 > burst + rate * (times[right] - times[left]) + 1e-9
        for left, right in combinations(range(len(times)), 2)
    )

    found = CHECKS["I13"](History(sketch("", settings=settings) + starts))
    assert bool(found) == overfull


ALLOWED_BY_REAL_TIME: dict[str, str] = {
    "I1": DISPATCHED
    + "0.5 terminal r1 outcome=canceled\n"
    + "0.51 provider_start r1 @w1 #1\n0.51 provider_end r1 @w1 #1",
    "I3": GOOD["I3"],
    "I6b": ACCEPTED + "1 poison cause=crash\n1.05 terminal r1 outcome=error",
    "I7": GOOD["I7"],
    "I8": GOOD["I8"],
    "I9": STREAMING + "1.08 kill @w1\n1.08 worker_dead @w1",
    "I13": "0 provider_start r1 @w1\n0 provider_start r2 @w2\n0.97 provider_start r3 @w1",
    "I18": "0 engine_start generation=1\n1 supervisor_dead\n1.05 poison cause=stopped",
    "I19": "0 worker_dead @a\n1 worker_dead @b\n2 worker_dead @c\n2.05 poison cause=crash",
}
"""What a machine takes its time for; all of it within a tenth of a second but one cancel."""


@pytest.mark.parametrize("name", ALLOWED_BY_REAL_TIME)
def test_what_real_time_excuses_simulated_time_does_not(name: str):
    text = ALLOWED_BY_REAL_TIME[name]
    live = History(sketch("0 run seed=1\n" + text))
    simulated = History(sketch("0 run seed=1 grid=0.01\n" + text))

    assert CHECKS[name](live) == []
    assert {violation.id for violation in CHECKS[name](simulated)} == {name}


@pytest.mark.parametrize("name", sorted(set(ALLOWED_BY_REAL_TIME) - {"I3", "I7"}))
def test_simulated_time_that_passed_within_a_step_is_excused(name: str):
    # a step that takes 0.1 s begins at each moment at which one may have to wait
    steps = "".join(f"{at} stretched seconds=0.1\n" for at in (0.4, 0.5, 0.9, 1, 2))
    text = f"0 run seed=1 grid=0.01\n{steps}{ALLOWED_BY_REAL_TIME[name]}"

    assert CHECKS[name](History(sketch(text))) == []


def test_who_has_just_risen_a_class_is_not_less_urgent_whatever_rounding_makes_of_it():
    text = "0 deployment slots=2 queue_capacity=2 aging=0.2\n"
    text += "2.16 accept r1 priority=0 deadline=9 depth=1\n2.3 accept r2 priority=1 deadline=9\n"
    text += "{at} shed r2 by=r3\n{at} accept r3 priority=3 deadline=9 depth=2"

    assert CHECKS["I24"](History(sketch(text.format(at=2.36)))) == []
    assert CHECKS["I24"](History(sketch(text.format(at=2.35)))) != []


@pytest.mark.parametrize(
    ("moved", "found"),
    [
        ("2 dequeue r3 deployment=a\n2 accept r3 deployment=b priority=1 deadline=9\n", 0),
        ("2 dequeue r3 deployment=a\n2 terminal r3 outcome=error\n", 0),
        ("2 terminal r3 outcome=canceled\n2 dequeue r3 deployment=a\n", 1),
        ("2 shed r3 by=r9 deployment=a\n2 dequeue r3 deployment=a\n", 1),
        ("", 2),
    ],
)
def test_a_turn_that_dispatches_nobody_counts_as_its_callers_own(moved: str, found: int):
    text = QUEUED.replace(" depth", " deployment=a depth")
    text += "0 accept r5 deployment=a priority=1 deadline=9 depth=5 caller=bob\n"
    text += "1 dispatch r1 @w1 #1 deployment=a\n2 dispatch r2 @w1 #2 deployment=a\n"
    third = "3 dispatch r4 @w1 #3 deployment=a"

    violations = CHECKS["I23"](History(sketch(text + moved + third)))

    assert len(violations) == found
