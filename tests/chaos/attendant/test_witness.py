"""Passages that somebody waits for."""

from orchestrator.chaos.attendant.witness import Witness
from orchestrator.points import Passage, Point


async def test_who_waits_for_a_passage_is_told_of_the_nth_of_those_deployments() -> None:
    witness = Witness()
    passed, leave = witness.expect(Point.WORKER_IDLE, 2, ["a", "b"])

    for point, deployment in (
        (Point.WORKER_IDLE, "a"),
        (Point.WORKER_IDLE, "c"),
        (Point.TOKEN_FIRST, "a"),
    ):
        witness(Passage(point=point, deployment=deployment))
    assert not passed.done()
    witness(Passage(point=Point.WORKER_IDLE, deployment="b"))
    witness(Passage(point=Point.WORKER_IDLE, deployment="a"))

    assert passed.result() == "b"
    leave()
