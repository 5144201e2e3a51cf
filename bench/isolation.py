"""What rude callers cost others: `python -m bench.isolation`, or `make isolation`.

    10 MB bodies, one after the other · thousands of idle connections · a body of one byte a second

A polite caller asks one paced request after the other and measures its first token, in rounds
without and with the rude ones, in turns, so that whatever else this machine does meets both alike.
The rude ones live in a process of their own, and so do the providers, of which the large bodies
have one to themselves: what it costs a provider to read them is none of the gateway's doing.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

BODY_BYTES = 9_600_000
PAUSE = 0.02
"""Seconds between two polite requests."""
ALLOWED = 1.2
"""Others' median first token, disturbed to undisturbed."""
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (
    len(EVENT) + 14,
    EVENT + b"data: [DONE]\n\n",
)


async def read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


async def provide() -> None:
    """A provider that answers at once with one token."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await read_request(reader)
                writer.write(ANSWER)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def request_of(payload: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(payload), payload)
    )


def payload_of(text: str) -> bytes:
    return json.dumps({"model": "large", "messages": [{"role": "user", "content": text}]}).encode()


async def disturb(port: int, idle: int) -> None:
    """All that is rude, until the process is ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(idle)]
    for reader, writer in held:  # each is idle after an answer, not before a head
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    print("ready", flush=True)
    await asyncio.gather(large(port), dripping(port))


async def large(port: int) -> None:
    text = 'word "quoted" \\ line\n' * (BODY_BYTES // 25)
    request = request_of(payload_of(text))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    while True:
        writer.write(request)
        await writer.drain()
        await read_request(reader)
        await asyncio.sleep(0.5)


async def dripping(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in request_of(payload_of("slow" * 1000)):
        writer.write(bytes([byte]))
        await asyncio.sleep(1)


async def first_tokens(port: int, count: int) -> list[float]:
    """Seconds to the first token of each of so many polite requests."""
    loop = asyncio.get_running_loop()
    members = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    request = request_of(json.dumps(members).encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken: list[float] = []
    for _ in range(count):
        await asyncio.sleep(PAUSE)
        asked_at = loop.time()
        writer.write(request)
        await reader.readuntil(b'"content":"a"')
        taken.append(loop.time() - asked_at)
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return taken


@contextlib.asynccontextmanager
async def process(*arguments: str) -> AsyncGenerator[asyncio.StreamReader]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert started.stdout is not None
    try:
        yield started.stdout
    finally:
        started.kill()
        await started.wait()


def configuration(folder: str, ports: Mapping[str, int], idle: int) -> str:
    path = Path(folder) / "gateway.yaml"
    deployments = "".join(
        f"  {name}:\n    slots: 16\n    runner: {{kind: openai, model: x, api_key: k, "
        f"base_url: 'http://127.0.0.1:{port}/v1'}}\n"
        for name, port in ports.items()
    )
    path.write_text(
        f"server: {{port: 0, access_log: false, max_connections: {idle + 100}}}\n"
        f"deployments:\n{deployments}",
        encoding="utf-8",
    )
    return str(path)


async def port_of(output: asyncio.StreamReader) -> int:
    while line := (await output.readline()).decode():
        if "listening on http://" in line:
            return int(line.partition("http://127.0.0.1:")[2].split(";")[0])
    raise SystemExit("the gateway did not start")


async def measure(rounds: int, requests: int, idle: int) -> bool:
    alone: list[float] = []
    beside: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        ports: dict[str, int] = {}
        for name in ("m", "large"):
            provider = await stack.enter_async_context(process("bench.isolation", "--provide"))
            ports[name] = int(await provider.readline())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        config = configuration(folder, ports, idle)
        output = await stack.enter_async_context(process("orchestrator", "serve", config))
        port = await port_of(output)
        await first_tokens(port, 20)
        for _ in range(rounds):
            alone += await first_tokens(port, requests)
            rude = ("bench.isolation", "--disturb", str(port), "--idle", str(idle))
            async with process(*rude) as said:
                await said.readline()
                beside += await first_tokens(port, requests)
    for name, taken in (("alone", alone), ("disturbed", beside)):
        cuts = statistics.quantiles(taken, n=100)
        print(
            f"{name:10} first token p50 {statistics.median(taken) * 1e3:6.2f} ms"
            f"  p95 {cuts[94] * 1e3:6.2f}  p99 {cuts[98] * 1e3:6.2f}  ({len(taken)} requests)"
        )
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"the median is {ratio:.2f} times as long; {ALLOWED} is allowed")
    return ratio <= ALLOWED


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--provide", action="store_true")
    parser.add_argument("--disturb", type=int, metavar="PORT")
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100)
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if asked.provide:
            asyncio.run(provide())
        elif asked.disturb:
            asyncio.run(disturb(asked.disturb, asked.idle))
        elif not asyncio.run(measure(asked.rounds, asked.requests, asked.idle)):
            sys.exit(1)


if __name__ == "__main__":
    main()
