"""The gateway's start and end, as its screen tells them."""

import asyncio
import signal

from tests.gateway.process import ROOT, gateway_process


async def test_a_signal_while_a_model_loads_is_followed_by_no_table() -> None:
    async with (
        asyncio.timeout(50),
        gateway_process(ROOT / "config" / "gateway.yaml") as (gateway, _),
    ):
        gateway.send(signal.SIGTERM)
        code = await gateway.ends()

    assert code == 0
    assert "stopping: 0 requests" in gateway.output
    assert "deployments ready" not in gateway.output
