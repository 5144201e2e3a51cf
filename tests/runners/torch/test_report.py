import pytest

from orchestrator.runners.torch.report import OutputTail, crash_report, describe_exit


@pytest.mark.parametrize(
    ("returncode", "said"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was ended by SIGKILL"),
        (-11, "was ended by SIGSEGV"),
        (-250, "was ended by signal 250"),
        (None, "hangs in the kernel"),
    ],
)
def test_the_end_of_a_process_is_told_in_words(returncode: int | None, said: str) -> None:
    assert said in describe_exit(returncode)


def test_the_last_lines_are_kept_and_no_more_than_that() -> None:
    tail = OutputTail(1)

    for number in range(100):
        tail.feed(f"line {number}\nhalf ".encode())
        tail.feed(b"of one\n")
    tail.feed(b"\xff unfinished")
    tail.close()

    assert len(tail.lines) == 20
    assert list(tail.lines)[-3:] == ["line 99", "half of one", "\ufffd unfinished"]


def test_a_line_without_end_takes_no_more_than_its_bound() -> None:
    tail = OutputTail(1)

    for _ in range(100):
        tail.feed(b"x" * 1000)
    tail.close()

    assert [len(line) for line in tail.lines] == [500]


def test_a_progress_bar_is_many_lines_and_not_one() -> None:
    tail = OutputTail(1)

    tail.feed(b"10 %\r20 %\r30 %")

    assert list(tail.lines) == ["10 %", "20 %"]


def test_a_report_has_pid_ending_activity_and_last_words() -> None:
    tail = OutputTail(7)
    tail.feed(b"one\ntwo\nthree\nfour\n")

    report = crash_report(pid=7, returncode=-9, activity="idle after 3 steps", tail=tail)

    assert report == (
        "the model host (pid 7) was ended by SIGKILL while idle after 3 steps; "
        "its last words: two | three | four"
    )
