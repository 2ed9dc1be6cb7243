"""Write grafana/overview.json: `python grafana/generate.py`. Edit the panels here, never the JSON.

Nine panels, each the answer to a question that an operator or finance asks. The JSON is Grafana's
classic dashboard model, as files under provisioning take it; schemaVersion 41 is that of Grafana 11.6
and 12, and later ones migrate it. https://grafana.com/docs/grafana/latest/ (Dashboard JSON model)
"""

import json
import pathlib
from typing import Any, NamedTuple

OUT = pathlib.Path(__file__).with_name("overview.json")
SCHEMA_VERSION = 41
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, WIDTH, HEIGHT = 2, 12, 9

# Only calls_total, tokens_total and the cost know the tenant; every filter is one that its metric has.
TENANT_AND_MODEL = 'tenant=~"$tenant", model=~"$model"'
MODEL = 'model=~"$model"'
TENANT = 'tenant=~"$tenant"'


class Axis(NamedTuple):
    """unit: Grafana's name of a unit, or `suffix:…`."""

    unit: str
    label: str = ""


class Query(NamedTuple):
    """One PromQL expression. right: drawn against the panel's right axis."""

    expr: str
    legend: str
    right: bool = False


class Panel(NamedTuple):
    title: str
    description: str
    left: Axis
    queries: tuple[Query, ...]
    right: Axis | None = None
    stacked: bool = False


def rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(q: float, metric: str, labels: str = "", by: str = "") -> str:
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', labels, f'le, {by}' if by else 'le')})"


def quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(quantile(q, metric, MODEL, "family"), f"{{{{family}}}} p{round(100 * q)}")
        for q in (0.5, 0.95, 0.99)
    )


PANELS = (
    Panel(
        title="Calls by outcome",
        description="Is it working? completed is good; refused is the client's, a limit or a full queue; the rest is "
        "ours. Right: who reaches which limit of its own.",
        left=Axis("reqps"),
        queries=(
            Query(rate("weighbridge_calls_total", TENANT_AND_MODEL, "outcome"), "{{outcome}}"),
            Query(
                rate("weighbridge_limit_refusals_total", TENANT, "tenant, limit"),
                "{{tenant}}: {{limit}}",
                right=True,
            ),
        ),
        right=Axis("reqps", "refused by limits"),
        stacked=True,
    ),
    Panel(
        title="Tokens by hardware",
        description="What does which hardware do? prompt includes cached_prompt. Only tokens that are known.",
        left=Axis("suffix: tok/s"),
        queries=(
            Query(rate("weighbridge_tokens_total", TENANT_AND_MODEL, "family, kind"), "{{family}} {{kind}}"),
        ),
    ),
    Panel(
        title="Estimated cost per hour",
        description="Who spends what? Right: calls that are not in it, because nothing prices them, and budgets that "
        "are nearly, or wholly, spent.",
        left=Axis("currencyUSD", "USD per hour"),
        queries=(
            Query(
                f"3600 * {rate('weighbridge_estimated_cost_usd_total', TENANT_AND_MODEL, 'tenant')}",
                "{{tenant}}",
            ),
            Query(
                rate("weighbridge_unpriced_calls_total", MODEL, "reason"), "unpriced: {{reason}}", right=True
            ),
            Query(
                rate("weighbridge_budget_thresholds_total", TENANT, "tenant, kind, percent"),
                "{{tenant}}: {{percent}} % of a {{kind}} budget",
                right=True,
            ),
        ),
        right=Axis("reqps", "unpriced"),
    ),
    Panel(
        title="Time to first token",
        description="How long until a stream says something? From the whole request to the first delta.",
        left=Axis("s"),
        queries=quantiles("weighbridge_ttft_seconds"),
    ),
    Panel(
        title="Time per output token",
        description="How fast do streams go on? The mean of each call after its first token.",
        left=Axis("s"),
        queries=quantiles("weighbridge_tpot_seconds"),
    ),
    Panel(
        title="Backends",
        description="Who is busy? Calls at each backend, and connections of clients. "
        "Right: 1 where a worker sees a backend that is not ready.",
        left=Axis("short", "in flight"),
        queries=(
            Query("sum by (backend) (weighbridge_in_flight)", "{{backend}}"),
            Query("sum(weighbridge_client_connections)", "clients' connections"),
            Query(
                'max by (backend, state) (weighbridge_backend_state{state!="ready"}) > 0',
                "{{backend}} is {{state}}",
                right=True,
            ),
        ),
        right=Axis("none", "not ready"),
    ),
    Panel(
        title="Why calls went elsewhere",
        description="What went wrong? spill: the tier before was full; fallback: a backend failed or was unable; "
        "bound: one of the configuration was passed. Right: attempts that did not complete.",
        left=Axis("reqps", "calls"),
        queries=(
            Query(rate("weighbridge_spills_total", MODEL, "reason"), "spill: {{reason}}"),
            Query(rate("weighbridge_fallbacks_total", MODEL, "reason"), "fallback: {{reason}}"),
            Query(rate("weighbridge_bound_exceeded_total", "", "bound"), "bound: {{bound}}"),
            Query(
                rate("weighbridge_attempts_total", 'outcome!="completed"', "backend, outcome"),
                "{{backend}} {{outcome}}",
                right=True,
            ),
        ),
        right=Axis("reqps", "attempts"),
    ),
    Panel(
        title="The gateway itself",
        description="What do we add? The wait for a slot, the gateway's own time in a call, and a loop that is late. "
        "Right: records that the ledger does not have yet, limits that cannot be checked, content that is not kept.",
        left=Axis("s"),
        queries=(
            Query(quantile(0.95, "weighbridge_queue_wait_seconds", MODEL), "queue wait p95"),
            Query(quantile(0.5, "weighbridge_overhead_seconds"), "overhead p50"),
            Query(quantile(0.99, "weighbridge_overhead_seconds"), "overhead p99"),
            Query("max(weighbridge_loop_lag_seconds) > 0.005", "loop lag"),
            Query("sum(weighbridge_ledger_lag_records)", "ledger lag", right=True),
            Query("sum(weighbridge_limits_unchecked) > 0", "workers that cannot check limits", right=True),
            Query(
                rate("weighbridge_captures_total", 'outcome!="kept"', "outcome"),
                "content not kept whole: {{outcome}}",
                right=True,
            ),
        ),
        right=Axis("short", "records"),
    ),
    Panel(
        title="Closing of hours",
        description="Is what finance sees complete? Hours that should have been closed and are not. "
        "Right: how long ago that was last looked at; it is each full hour.",
        left=Axis("short", "hours"),
        queries=(
            Query("max(weighbridge_close_hours_behind)", "hours behind"),
            Query("time() - max(weighbridge_close_timestamp_seconds)", "since it was looked at", right=True),
        ),
        right=Axis("s", "since"),
    ),
)


def target_json(query: Query, index: int) -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": True,
        "refId": "ABCDEFGH"[index],
    }


def override_json(index: int, axis: Axis) -> dict[str, Any]:
    """Draw all series of one query against the right axis, dashed."""
    return {
        "matcher": {"id": "byFrameRefID", "options": "ABCDEFGH"[index]},
        "properties": [
            {"id": "unit", "value": axis.unit},
            {"id": "custom.axisPlacement", "value": "right"},
            {"id": "custom.axisLabel", "value": axis.label},
            {"id": "custom.lineStyle", "value": {"dash": [6, 4], "fill": "dash"}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }


def panel_json(panel: Panel, index: int) -> dict[str, Any]:
    assert (panel.right is not None) == any(query.right for query in panel.queries)
    return {
        "datasource": DATASOURCE,
        "description": panel.description,
        "fieldConfig": {
            "defaults": {
                "color": {"mode": "palette-classic"},
                "custom": {
                    "axisLabel": panel.left.label,
                    "axisPlacement": "auto",
                    "drawStyle": "line",
                    "fillOpacity": 20 if panel.stacked else 5,
                    "lineInterpolation": "linear",
                    "lineWidth": 1,
                    "showPoints": "never",
                    "spanNulls": False,
                    "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
                },
                "min": 0,
                "unit": panel.left.unit,
            },
            "overrides": [
                override_json(at, panel.right)
                for at, query in enumerate(panel.queries)
                if query.right and panel.right
            ],
        },
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": index % COLUMNS * WIDTH, "y": index // COLUMNS * HEIGHT},
        "id": index + 1,
        "options": {
            "legend": {
                "calcs": ["lastNotNull"],
                "displayMode": "table",
                "placement": "right",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [target_json(query, at) for at, query in enumerate(panel.queries)],
        "title": panel.title,
        "type": "timeseries",
    }


def datasource_variable_json() -> dict[str, Any]:
    return {
        "current": {},
        "hide": 0,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }


def label_variable_json(label: str, title: str) -> dict[str, Any]:
    """A choice of values of a label, all of them at first."""
    query = f"label_values(weighbridge_calls_total, {label})"
    return {
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "datasource": DATASOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "label": title,
        "multi": True,
        "name": label,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "type": "query",
    }


def dashboard_json() -> dict[str, Any]:
    return {
        "annotations": {"list": []},
        "description": "Calls, tokens, cost and latency by hardware. Generated by grafana/generate.py.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": [panel_json(panel, index) for index, panel in enumerate(PANELS)],
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["weighbridge"],
        "templating": {
            "list": [
                datasource_variable_json(),
                label_variable_json("tenant", "Tenant"),
                label_variable_json("model", "Model"),
            ]
        },
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "utc",
        "title": "Weighbridge: overview",
        "uid": "weighbridge-overview",
        "version": 1,
    }


def text() -> str:
    return json.dumps(dashboard_json(), indent=2) + "\n"


if __name__ == "__main__":
    OUT.write_text(text())
