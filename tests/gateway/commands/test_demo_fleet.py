"""The demo's configuration, and where its prices come from."""

import csv
import importlib.resources
import io
import pathlib
from fractions import Fraction

import pytest

from backends.simulator.server import profile_of
from backends.simulator.settings import Settings
from gateway.api.auth import hash_of
from gateway.commands import demo_fleet
from gateway.commands.demo import called_as
from gateway.commands.demo_fleet import SERVED_MODEL, SERVERS, STAFF, TENANTS, Server
from gateway.configuration import config_load
from gateway.configuration.config import Config

NEURON = [server for server in SERVERS if server.neuron]
PROMPT_WEIGHT, CACHED_WEIGHT = Fraction(1, 4), Fraction(1, 40)


def configuration(state_dir: pathlib.Path) -> Config:
    return demo_fleet.configuration(
        {server.name: f"http://127.0.0.1:{9000 + at}" for at, server in enumerate(SERVERS)},
        {tenant.name: hash_of(tenant.name) for tenant in (*TENANTS, STAFF)},
        listen="127.0.0.1:8080",
        ops_listen="127.0.0.1:8081",
        state_dir=str(state_dir),
    )


def test_the_written_file_is_the_configuration(tmp_path: pathlib.Path) -> None:
    config = configuration(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(demo_fleet.to_yaml(config))
    assert config_load.load(path, {}) == config


def measured(server: Server) -> tuple[Fraction, Fraction]:
    """USD per hour, and output tokens per second at full load in the run that the simulator's timing is from."""
    files = importlib.resources
    prices = csv.DictReader(io.StringIO((files.files("metering") / "data/instances.csv").read_text()))
    (hour,) = [
        row["usd_per_hour_on_demand"] for row in prices if row["instance_type"] == server.instance_type
    ]
    profile = profile_of(Settings(instance_type=server.instance_type, model=SERVED_MODEL, slots=server.slots))
    runs = csv.DictReader(io.StringIO((files.files("backends") / "data/neuron_benchmarks.csv").read_text()))
    (rate,) = [
        row["out_tok_s"]
        for row in runs
        if profile.source.endswith(row["source"])
        and row["instance_type"] == server.instance_type
        and row["concurrency"].startswith("max")
    ]
    assert profile.full == server.slots
    return Fraction(hour), Fraction(rate)


@pytest.mark.parametrize("server", NEURON, ids=lambda server: server.name)
def test_a_neuron_price_follows_from_a_measurement(server: Server) -> None:
    usd_per_hour, tokens_per_s = measured(server)
    completion = usd_per_hour / (tokens_per_s * 3_600) * 10**6 / (1 + 6 * PROMPT_WEIGHT)
    card = server.card
    assert card.cached_prompt is not None
    for price, exact in (
        (card.prompt, completion * PROMPT_WEIGHT),
        (card.cached_prompt, completion * CACHED_WEIGHT),
        (card.completion, completion),
    ):
        assert Fraction(price) == round(exact, 4)
    assert f"{float(usd_per_hour)} USD/h ÷ {float(tokens_per_s)} tokens/s measured" in card.source


def test_what_was_not_measured_says_so() -> None:
    for server in SERVERS:
        assert server.neuron or server.card.source.startswith("assumed")


def test_the_demo_says_how_it_is_to_be_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert called_as(".venv/bin/weighbridge") == ".venv/bin/weighbridge"
    assert called_as("gateway/cli.py") == "weighbridge"
    (tmp_path / "weighbridge").touch(mode=0o755)
    assert called_as(".venv/bin/weighbridge") == "weighbridge"
