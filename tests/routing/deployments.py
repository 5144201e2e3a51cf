"""Deployments as routing knows them, without anything behind them."""

from orchestrator.inflight import Inflight
from orchestrator.routing.deployment import Deployment
from orchestrator.runners.base import accept_anything


def deployment(
    name: str,
    *,
    healthy: bool = True,
    ready: bool | None = None,
    slots: int = 1,
    context: int | None = None,
) -> Deployment:
    return Deployment(
        name=name,
        inflight=Inflight(
            deployment=name,
            enqueue=lambda _: None,
            dequeue=lambda _: None,
            on_accepted=lambda: None,
            on_gone=lambda _: None,
            slots=slots,
        ),
        inspect=accept_anything,
        ready=lambda: healthy if ready is None else ready,
        healthy=lambda: healthy,
        context=context,
    )
