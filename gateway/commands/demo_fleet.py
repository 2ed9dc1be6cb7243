"""The demo's fleet, tenants and prices, as a configuration. Pure.

    completion price = USD per hour ÷ measured output tokens per hour ÷ (1 + 6 × 0.25)
    prompt price     = 0.25 × completion price;   cached prompt price = 0.1 × prompt price

The hour's price is the list's (metering/data/instances.csv); the throughput that of the run that the
simulator has its timing from (backends/data/neuron_benchmarks.csv), at full load, with 1,500 prompt and
250 completion tokens a call: 6 to 1. The weights 0.25 and 0.1 are assumed. So are the GPU's prices.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import yaml

from backends.model import Backend
from gateway.configuration.config import CardEntry, Config, Key, LimitSet, Model, Ops, Scope, Tenant, Tier

MODEL = "llama-3.1-8b"
SERVED_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
REGION = "us-east-1"
NEURON_VERSION = "2.28.0"
_CARD_DATE = "2026-07-20"
_LINE_MAX = 1_000


class Server(NamedTuple):
    """A simulated server. slots: its full batch. neuron: is it an accelerator of AWS?"""

    name: str
    instance_type: str
    slots: int
    tensor_parallel: int
    neuron: bool
    card: CardEntry

    def backend(self, url: str) -> Backend:
        """As the configuration has it."""
        return Backend(
            name=self.name,
            url=url,
            model=SERVED_MODEL,
            instance_type=self.instance_type,
            instance_id=f"i-simulated-{self.name}",
            slots=self.slots,
            max_model_len=4096 if self.neuron else 8192,
            region=REGION,
            neuron_version=NEURON_VERSION if self.neuron else None,
            tensor_parallel=self.tensor_parallel,
        )


def _measured(family: str, prices: tuple[str, str, str], basis: str) -> CardEntry:
    prompt, cached_prompt, completion = prices
    return CardEntry(
        family=family,
        prompt=prompt,
        cached_prompt=cached_prompt,
        completion=completion,
        date=_CARD_DATE,
        source=f"{basis} (neuron_benchmarks.csv); prompt : cached weighed 0.25 : 0.025 of completion (assumed)",
    )


SERVERS = (
    Server(
        name="inf2-a",
        instance_type="inf2.48xlarge",
        slots=96,
        tensor_parallel=8,
        neuron=True,
        card=_measured(
            "inf2", ("0.2941", "0.0294", "1.1764"), "list 12.98127 USD/h ÷ 1226.12 tokens/s measured, 3 × TP8"
        ),
    ),
    Server(
        name="trn1-a",
        instance_type="trn1.32xlarge",
        slots=128,
        tensor_parallel=8,
        neuron=True,
        card=_measured(
            "trn1", ("0.3787", "0.0379", "1.5150"), "list 21.5 USD/h ÷ 1576.86 tokens/s measured, 4 × TP8"
        ),
    ),
    Server(
        name="gpu-a",
        instance_type="g6e.xlarge",
        slots=32,
        tensor_parallel=1,
        neuron=False,
        card=CardEntry(
            family="g6e",
            prompt="0.4",
            cached_prompt="0.04",
            completion="1.6",
            date=_CARD_DATE,
            source="assumed for the demo: nothing was measured on this instance",
        ),
    ),
)

LIMITED, LIMITED_PER_MINUTE = "initech", 600
"""Whose answers tell how a limit stands; more than anybody who tries the demo comes to."""
TENANTS = (
    Tenant(name="acme", projects=("search",), tags={"cost-center": "cc-1001"}),
    Tenant(name="globex", projects=("support",), tags={"cost-center": "cc-2040"}),
    Tenant(
        name=LIMITED,
        projects=("reports",),
        tags={"cost-center": "cc-3300", "team": "batch"},
        limits=LimitSet(requests_per_minute=LIMITED_PER_MINUTE),
    ),
)
STAFF = Tenant(name="platform")
"""Makes no calls: whose key reads the metrics and what is for auditors."""

_TENANTS_SCOPES: tuple[Scope, ...] = ("inference",)
_STAFF_SCOPES: tuple[Scope, ...] = ("operator", "auditor", "finance")


def configuration(
    urls: Mapping[str, str], key_hashes: Mapping[str, str], *, listen: str, ops_listen: str, state_dir: str
) -> Config:
    """urls: of the servers, by name. key_hashes: of the tenants and the staff, by name."""
    model = Model(
        name=MODEL,
        aliases=(SERVED_MODEL,),
        tiers=(
            Tier(backends=tuple(server.name for server in SERVERS if server.neuron)),
            Tier(backends=tuple(server.name for server in SERVERS if not server.neuron)),
        ),
        rate_cards=tuple(server.card for server in SERVERS),
        owner="platform-team",
        logging_policy="no content",
        vendor="meta",
    )
    return Config(
        listen=listen,
        ops=Ops(listen=ops_listen),
        state_dir=state_dir,
        tenants=tuple(
            msgspec.structs.replace(tenant, keys=(Key(hash=key_hashes[tenant.name], scopes=scopes),))
            for tenant, scopes in (*((tenant, _TENANTS_SCOPES) for tenant in TENANTS), (STAFF, _STAFF_SCOPES))
        ),
        models=(model,),
        backends=tuple(server.backend(urls[server.name]) for server in SERVERS),
    )


def to_yaml(config: Config) -> str:
    """The configuration as a file that a person reads: what is not set is left out, a value is one line."""
    tree = _without_unset(msgspec.to_builtins(config))
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=_LINE_MAX)
    return "# Written anew by each start of `weighbridge demo`. Its servers are simulated.\n" + str(text)


def _without_unset(value: object) -> object:
    if isinstance(value, dict):
        kept = ((key, _without_unset(item)) for key, item in value.items())
        return {key: item for key, item in kept if item not in (None, {}, [])}
    return [_without_unset(item) for item in value] if isinstance(value, list | tuple) else value
