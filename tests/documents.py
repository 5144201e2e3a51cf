"""What repeats the code: the documents' tables and the configuration's schema.

`python -m tests.documents` writes them.
"""

import inspect
import json
import re
from pathlib import Path

from prometheus_client import Metric

from orchestrator import errors, metrics
from orchestrator.config import schema
from tests.providers import provider_table

ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PROVIDERS = ROOT / "docs" / "providers.md"
SCHEMA = ROOT / "config" / "gateway.schema.json"


def error_table() -> str:
    lines = [
        "| error | status | code | retried | fails over | trips breaker | scope |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in vars(errors).items():
        if not inspect.isclass(kind) or not issubclass(kind, errors.OrchestratorError):
            continue
        flags = (kind.retryable, kind.fails_over, kind.trips_breaker)
        words = " | ".join("yes" if flag else "" for flag in flags)
        lines.append(f"| `{name}` | {kind.status_code} | `{kind.code}` | {words} | {kind.scope} |")
    return "\n".join(lines)


def metric_table() -> str:
    families: list[Metric] = sorted(metrics.REGISTRY.collect(), key=lambda metric: metric.name)
    lines = ["| metric | meaning |", "|---|---|"]
    lines += [f"| `{metric.name}` | {metric.documentation} |" for metric in families]
    return "\n".join(lines)


def with_tables(text: str) -> str:
    tables = {"errors": error_table, "metrics": metric_table, "providers": provider_table}
    for name, table in tables.items():
        if f"<!-- {name}:" not in text:
            continue
        text = re.sub(
            rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}\n{table()}\n\n{match[2]}",
            text,
            count=1,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    ARCHITECTURE.write_text(with_tables(ARCHITECTURE.read_text("utf-8")), "utf-8")
    PROVIDERS.write_text(with_tables(PROVIDERS.read_text("utf-8")), "utf-8")
    SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n", "utf-8")
