"""Scenarios that are slowed down."""

from orchestrator.chaos.scenario.reading import parse_scenario, shipped
from orchestrator.chaos.scenario.slowing import slowed

YAML = """\
version: 1
name: x
about: y
system: {permits: 60, deadline: 8s, stall: 1s, open_for: 2s, restart: {max: 5, per: 30s}}
load: {rate: 20/s, for: 6s, tokens: [2, 12], deadlines: [500ms, 8s]}
steady: {success: ">= 0.99", ttft_p95: "<= 500ms", for: 2s}
faults:
  - {at: 1s, provider: any, do: latency, seconds: 200ms, jitter: 50ms, for: 3s}
  - {at: 2s, provider: any, do: status, code: 429, retry_after: 1s, every: 1s, times: 2}
  - {after_requests: 9, client: any, do: slow_reader, size: 30B}
  - {at: 3s, gateway: any, do: block, seconds: 2s}
heal: 10s
expect: {done: ">= 0.5", recovery: "<= 4s"}
"""


def test_times_grow_rates_shrink_and_numbers_stay() -> None:
    scenario = slowed(parse_scenario(YAML), 3)

    assert (scenario.load.rate, scenario.load.for_, scenario.load.deadlines) == (
        20 / 3,
        18,
        (1.5, 24),
    )
    assert scenario.load.rate * scenario.load.for_ == 120
    system = scenario.system
    assert (system.permits, system.deadline, system.stall, system.open_for) == (20, 24, 3, 6)
    assert (system.restart.max, system.restart.per, scenario.heal) == (5, 90, 30)
    assert (scenario.steady.for_, str(scenario.steady.success.text)) == (6, ">= 0.99")
    assert scenario.steady.ttft_p95 is not None
    assert scenario.steady.ttft_p95.holds(1.5)
    assert not scenario.steady.ttft_p95.holds(1.6)
    assert scenario.expect.recovery is not None
    assert scenario.expect.recovery.text == "<= 12s"
    latency, status, reader, block = scenario.faults
    assert (latency.at, latency.seconds, latency.for_) == (3, 0.6000000000000001, 9)
    assert (status.retry_after, status.every, status.times) == (3, 3, 2)
    assert (reader.after_requests, reader.size) == (9, 10)
    assert (block.at, block.seconds) == (9, 2)


def test_once_as_slow_is_the_scenario_itself() -> None:
    assert all(slowed(scenario, 1) == scenario for scenario in shipped())
