"""Headers whose values stand in files that change while requests are sent."""

import logging
from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.plan import plan_deployments
from orchestrator.runners.remote.header_file import HeaderFile
from tests.fakes.keys import ANSWERED
from tests.fakes.sse_server import SseServer
from tests.runners.remote.asking import Asker

YAML = """
deployments:
  m:
    runner:
      kind: openai
      base_url: {url}
      model: m
      headers:
        X-Tenant: {{file: tenant}}
        X-Fixed: fixed
"""


@pytest.mark.live
async def test_a_header_from_a_file_is_the_files_value_of_now(tmp_path: Path):
    file = tmp_path / "tenant"
    file.write_text("blue\n", encoding="utf-8")

    async with SseServer(ANSWERED) as server:
        config = parse(YAML.format(url=server.url), folder=tmp_path)
        asker = Asker(plan_deployments(config)[0][0].factory)
        await asker.ask()
        file.write_text("green", encoding="utf-8")
        await asker.ask()
        file.unlink()
        await asker.ask()
        await asker.factory.aclose()

    sent = [request.headers for request in server.requests]
    assert [headers["x-tenant"] for headers in sent] == ["blue", "green", "green"]
    assert {headers["x-fixed"] for headers in sent} == {"fixed"}


def test_a_value_that_no_header_can_carry_leaves_the_one_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "tenant"
    file.write_text("blue", encoding="utf-8")
    header = HeaderFile(file, "blue")
    header()

    with caplog.at_level(logging.WARNING):
        file.write_text("gr\xfcn", encoding="utf-8")
        told = [header(), header()]

    assert told == ["blue", "blue"]
    (record,) = caplog.records
    assert record.message.startswith(f"a header stays as it is: the key from file {file} holds")


def test_what_was_written_before_the_first_request_counts(tmp_path: Path):
    file = tmp_path / "tenant"
    file.write_text("green", encoding="utf-8")

    assert HeaderFile(file, "blue")() == "green"
