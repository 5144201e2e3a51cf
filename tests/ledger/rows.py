"""Rows for tests."""

from orchestrator.ledger.row import Row


def a_row(uid: str) -> Row:
    return Row(
        uid=uid,
        request_id=f"req-{uid}",
        caller="ann",
        route="chat",
        deployment="d",
        model="m",
        attempts=1,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        reasoning_tokens=0,
        cost_nano_usd=100,
        estimated=False,
        failed_attempts=0,
        failed_tokens=0,
        failed_cost_nano_usd=0,
        accepted_at_ms=1_000,
        queued_ms=1,
        first_token_ms=5,
        ended_at_ms=2_000,
        outcome="finished",
        finish_reason="stop",
    )
