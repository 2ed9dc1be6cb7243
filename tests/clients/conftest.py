"""Fixtures of `make clients`: the scene, and each client library as a running program."""

import contextlib
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.clients import environment
from tests.clients.scene import KEEPALIVE_S, LIMITED, MODELS, Scene
from tests.support import gateway, simulator


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    assert environment.default().is_installed(), "run `make clients`, which installs the client libraries"
    with contextlib.ExitStack() as stack:
        simulators = {
            name: stack.enter_context(
                simulator.running(
                    Settings(instance_type="inf2.48xlarge", model="Llama-3.1-8B", slots=4, time_scale=scale)
                )
            )
            for name, scale in MODELS.items()
        }
        yield Scene(stack.enter_context(_gateway(tmp_path_factory, simulators)), simulators)


def _gateway(
    tmp_path_factory: pytest.TempPathFactory, simulators: dict[str, simulator.Running]
) -> contextlib.AbstractContextManager[gateway.Gateway]:
    backends = [
        {
            "name": name,
            "url": running.url,
            "model": "Llama-3.1-8B",
            "instance_type": "inf2.48xlarge",
            "slots": 4,
        }
        for name, running in simulators.items()
    ]
    models = [{"name": name, "tiers": [{"backends": [name]}]} for name in simulators]
    directory = tmp_path_factory.mktemp("clients")
    return gateway.running(
        directory,
        backends,
        models=models,
        keepalive_s=KEEPALIVE_S,
        tenants=("acme", *LIMITED),
        of_tenants={name: {"limits": limits} for name, limits in LIMITED.items()},
        auth={"failures_per_minute": 1_000_000},  # whoever asks for everything has many wrong keys
    )
