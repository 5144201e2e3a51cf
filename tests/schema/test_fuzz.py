"""A few hundred requests made from the published document; `make schema-fuzz` makes thousands."""

import asyncio

import pytest

from tests.schema.fuzz import fuzz


@pytest.mark.live
@pytest.mark.timeout(300)
async def test_no_request_from_the_document_gets_a_5xx_or_a_status_it_does_not_name() -> None:
    async with asyncio.timeout(280):
        verdict = await fuzz(40, seed=1, phases="fuzzing")

    assert verdict.ok, verdict.report
    assert verdict.cases >= 200
