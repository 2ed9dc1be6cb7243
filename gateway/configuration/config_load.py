"""Reading the configuration: flag > environment > file > default, every mistake named at its place."""

import importlib.resources
import pathlib
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from backends import tls
from backends.catalog import Catalog, InstanceType, read_catalog
from backends.model import Section
from gateway.configuration import config_check, instance_check, pricing_config
from gateway.configuration.config import (
    LISTEN_DEFAULT,
    Allocation,
    Config,
    Exports,
    InstanceTypeEntry,
    Journal,
    Model,
    Ops,
    PriceEntry,
    Redis,
    Scope,
    SharedCostEntry,
    Tenant,
    host_and_port,
)
from gateway.configuration.config_shape import Shape, did_you_mean
from gateway.configuration.config_tree import ConfigErrors, Mistake, Node, grown, lay
from gateway.configuration.pricing_config import Tables
from metering.archive.objects import ArchiveError, LocalObjects
from metering.cost.price_book import InstancePrice
from metering.cost.price_versions import PriceVersions

if TYPE_CHECKING:
    from metering.audit.keys import Keys

DEFAULT_FILE = "weighbridge.yaml"
PREFIX = "WEIGHBRIDGE_"
_MOUNTS = pathlib.Path("/proc/self/mounts")
_ELSEWHERE = {"WEIGHBRIDGE_CONFIG", "WEIGHBRIDGE_PORT"}
_LISTEN = ("WEIGHBRIDGE_LISTEN", "WEIGHBRIDGE_PORT")
_OF_A_PLACE = tuple(
    f"{PREFIX}{name}"
    for name in (
        "STATE_DIR",
        "REDIS",
        "JOURNAL",
        "ALLOCATION",
        "CHARGEBACK",
        "EXPORTS",
        "LISTEN",
        "PORT",
        "OPS",
    )
)
_SHORT = {"WEIGHBRIDGE_REDIS_URL": "redis__url"}
# Kubernetes sets these in every pod beside a Service named weighbridge; they are not meant for us.
_SERVICE_LINK = re.compile(r"WEIGHBRIDGE_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)\Z")
_SERVICE_LINK_PORT = re.compile(r"(tcp|udp)://")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of the command line that stand for keys. None: not given."""

    port: int | None = None
    state_dir: str | None = None


NO_FLAGS = Flags()


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A `--backend`: its URL and the name that it serves its model by."""

    url: str
    model: str


class Place(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the data is, and the gateway: all that the commands need which serve nothing."""

    listen: str = LISTEN_DEFAULT
    ops: Ops = Ops()
    state_dir: str = ".weighbridge"
    redis: Redis = Redis()
    journal: Journal = Journal()
    prices: tuple[PriceEntry, ...] = ()
    instance_types: tuple[InstanceTypeEntry, ...] = ()
    models: tuple[Model, ...] = ()
    allocation: Allocation = Allocation()
    shared_costs: tuple[SharedCostEntry, ...] = ()
    chargeback: Literal["rate-card", "allocated"] = "rate-card"
    exports: Exports = Exports()

    @property
    def journals(self) -> pathlib.Path:
        """The journals' root."""
        return pathlib.Path(self.state_dir) / "journal"

    @property
    def keys(self) -> "Keys":
        """The keys that sign the journals."""
        from metering.audit.keys import Keys  # what it needs takes as long to import as all else

        return Keys(self.state_dir, self.journal.signing_key_file)


def instances_csv() -> str:
    """The shipped table of instance types and their list prices, as text."""
    return _shipped("instances.csv")


def catalog_of(instance_types: Sequence[InstanceTypeEntry]) -> Catalog:
    """Instance types by name: those of the configuration and those of the shipped table."""
    own = {
        one.name: InstanceType(
            name=one.name,
            family=one.family,
            accelerator=one.accelerator,
            accelerators=one.accelerator_count,
            neuron_cores=one.cores,
        )
        for one in instance_types
    }
    return {**read_catalog(instances_csv()), **own}


def price_tables() -> Tables:
    """The shipped tables of prices."""
    return Tables(instances_csv(), _shipped("other_prices.csv"))


def _shipped(name: str) -> str:
    return (importlib.resources.files("metering") / "data" / name).read_text(encoding="utf-8")


def config_path(flag: str | None, env: Mapping[str, str]) -> pathlib.Path:
    """The file: -c, else WEIGHBRIDGE_CONFIG, else weighbridge.yaml in the working directory."""
    return pathlib.Path(flag or env.get("WEIGHBRIDGE_CONFIG") or DEFAULT_FILE)


def load(path: pathlib.Path, env: Mapping[str, str], flags: Flags = NO_FLAGS) -> Config:
    """The configuration of `serve` and `check`. Raises ConfigErrors with all that is wrong with it."""
    root, mistakes = _read_file(path)
    return _checked(root, mistakes, env, flags)


def for_backends(
    served: Sequence[Served],
    *,
    key_hash: str,
    env: Mapping[str, str],
    flags: Flags,
    instance_type: str | None = None,
    slots: int | None = None,
) -> Config:
    """The configuration of `serve --backend`: one tenant, one key, a model for each served name.

    A model's id is made from its served name, which stays as an alias. Raises ConfigErrors.
    """
    tiers: dict[str, list[str]] = {}
    backends = []
    for number, backend in enumerate(served, start=1):
        name = f"backend-{number}"
        tiers.setdefault(backend.model, []).append(name)
        entry = {"name": name, "url": backend.url, "model": backend.model}
        entry |= {"instance_type": instance_type} if instance_type else {}
        backends.append(entry | ({"slots": slots} if slots is not None else {}))
    models = []
    for served_name, names in tiers.items():
        id_ = model_id(served_name)
        aliases = [served_name] if served_name != id_ else []
        models.append({"name": id_, "aliases": aliases, "tiers": [{"backends": names}]})
    # Whoever starts it this way is application, operator, finance and auditor in one.
    tenants = [{"name": "default", "keys": [{"hash": key_hash, "scopes": list(get_args(Scope))}]}]
    root = grown({"tenants": tenants, "models": models, "backends": backends}, "--backend")
    mistakes: list[Mistake] = []
    _lay_environment(root, env, mistakes)
    return _checked(root, mistakes, {}, flags)


def model_id(served_name: str) -> str:
    """An id made from the name that a server knows its model by: lower case, other characters "-"."""
    id_ = re.sub(r"[^a-z0-9._-]", "-", served_name.lower())[:63]
    return id_ if re.match("[a-z0-9]", id_) else "m" + id_[:62]


def place(path: pathlib.Path | None, env: Mapping[str, str], flags: Flags = NO_FLAGS) -> Place:
    """Where the data is: by flags, environment and the file `path`, if there is one. Raises ConfigErrors."""
    root, mistakes = _read_file(path) if path else (Node(value={}, where="environment"), [])
    known = {name: value for name, value in env.items() if name.startswith(_OF_A_PLACE)}
    _lay_environment(root, known, mistakes)
    _lay_flags(root, Flags(state_dir=flags.state_dir), mistakes)
    if mistakes:
        raise ConfigErrors(mistakes)
    root.value = {key: root.value[key] for key in Place.__struct_fields__ if key in root.value}
    shape = Shape()
    found = shape.read(root, Place)
    config_check.check_prices(found.prices, shape.report)
    config_check.check_shared_costs(found.shared_costs, shape.report)
    shape.raise_mistakes()
    return found


def listen(env: Mapping[str, str], flags: Flags) -> tuple[str, int]:
    """Host and port of the API by flags and environment, for a file yet to be written. Raises ConfigErrors."""
    root = Node(value={}, where="environment")
    mistakes: list[Mistake] = []
    _lay_environment(root, {name: env[name] for name in _LISTEN if name in env}, mistakes)
    _lay_flags(root, Flags(port=flags.port), mistakes)
    if mistakes:
        raise ConfigErrors(mistakes)
    found = root.value.get("listen", Node(value=LISTEN_DEFAULT, where="default"))
    try:
        return host_and_port(found.value)
    except ValueError as error:
        raise ConfigErrors([Mistake(found.where, 0, "listen", str(error))]) from error


def notes(config: Config) -> list[str]:
    """What will work, and perhaps not as it is meant: calls that will be unpriced, with what would price them,
    rate cards that price nothing, or nothing yet, shares of instances that do not fit together."""
    found = []
    imported: list[InstancePrice] = []
    try:
        imported = PriceVersions(LocalObjects(pathlib.Path(config.state_dir))).prices()
    except ArchiveError as error:
        found.append(f"imported prices cannot be used: {error}")
    book = pricing_config.price_book(config.prices, imported, price_tables())
    prices = pricing_config.price_list(config, book)
    catalog = catalog_of(config.instance_types)
    now_ns = time.time_ns()
    found += [
        *pricing_config.unpriced(config, catalog, prices, now_ns),
        *pricing_config.later_cards(config, now_ns),
        *pricing_config.idle_cards(config, catalog),
        *instance_check.notes(config.backends, catalog),
    ]
    return [f"note: {note}" for note in found]


def redis_url(redis: Redis) -> str | None:
    """The URL of the store, with its CA as an option; None: the embedded one. Reads the files. Raises ConfigErrors."""
    url = redis.url
    if redis.url_file is not None:
        try:
            url = pathlib.Path(redis.url_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigErrors(
                [Mistake(redis.url_file, 0, "", f"cannot be read: {_reason(error)}")]
            ) from error
        if wrong := config_check.wrong_redis_url(url):
            raise ConfigErrors([Mistake(redis.url_file, 0, "", wrong)])
    if url is None or redis.ca_file is None:
        return url
    wrong_ca = config_check.wrong_redis_ca(url, None) or _wrong_ca_file(redis.ca_file)
    if wrong_ca:
        raise ConfigErrors([Mistake(redis.ca_file, 0, "redis.ca_file", wrong_ca)])
    return url + ("&" if "?" in url else "?") + "ssl_ca_certs=" + urllib.parse.quote(redis.ca_file, safe="/")


def backend_keys(config: Config) -> dict[str, str]:
    """Keys of backends by name, from their files. Raises ConfigErrors with all that cannot be read."""
    named = {backend.name: (f"backends[{i}]", backend.key_file) for i, backend in enumerate(config.backends)}
    return _keys({name: (path, file) for name, (path, file) in named.items() if file is not None})


def peer_keys(config: Config) -> dict[str, str]:
    """Keys of the other gateways by URL, likewise."""
    return _keys(
        {peer.url: (f"audit.peers[{i}]", peer.key_file) for i, peer in enumerate(config.audit.peers)}
    )


def _keys(files: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """What these files hold. files: of each name the path of its section, and the file."""
    keys: dict[str, str] = {}
    mistakes = []
    for name, (path, file) in files.items():
        try:
            keys[name] = pathlib.Path(file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            mistakes.append(Mistake(file, 0, f"{path}.key_file", f"cannot be read: {_reason(error)}"))
    if mistakes:
        raise ConfigErrors(mistakes)
    return keys


def check_ca_files(config: Config) -> None:
    """Raises ConfigErrors with every `ca_file` that cannot be used."""
    mistakes = []
    if config.redis.ca_file is not None and (wrong := _wrong_ca_file(config.redis.ca_file)):
        mistakes.append(Mistake(config.redis.ca_file, 0, "redis.ca_file", wrong))
    for index, backend in enumerate(config.backends):
        if backend.ca_file is not None and (wrong := _wrong_ca_file(backend.ca_file)):
            mistakes.append(Mistake(backend.ca_file, 0, f"backends[{index}].ca_file", wrong))
    for index, peer in enumerate(config.audit.peers):
        if peer.ca_file is not None and (wrong := _wrong_ca_file(peer.ca_file)):
            mistakes.append(Mistake(peer.ca_file, 0, f"audit.peers[{index}].ca_file", wrong))
    if mistakes:
        raise ConfigErrors(mistakes)


def _wrong_ca_file(path: str) -> str | None:
    try:
        tls.client_context(path)
    except OSError as error:
        return f"cannot be read: {_reason(error)}"
    except ValueError as error:
        return str(error)
    return None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"


def _read_file(path: pathlib.Path) -> tuple[Node, list[Mistake]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigErrors([Mistake(str(path), 0, "", f"cannot be read: {_reason(error)}")]) from error
    from gateway.configuration import config_yaml  # here: a worker imports this module and reads no file

    return config_yaml.read_yaml(data, str(path))


def _checked(root: Node, mistakes: list[Mistake], env: Mapping[str, str], flags: Flags) -> Config:
    _lay_environment(root, env, mistakes)
    _lay_flags(root, flags, mistakes)
    shape = Shape()
    config = shape.read(root, Config)
    config_check.check(config, catalog_of(config.instance_types), shape.report)
    _check_own_types(config.instance_types, shape)
    _check_public_keys(config.tenants, shape)
    if kind := _network_file_system(config.state_dir):
        shape.report(
            "state_dir", f"is on {kind}: locks and fdatasync cannot be relied on there; use a local disk"
        )
    if mistakes + shape.mistakes:
        raise ConfigErrors(mistakes + shape.mistakes)
    return config


def _check_own_types(instance_types: Sequence[InstanceTypeEntry], shape: Shape) -> None:
    """What the table has it has from Amazon; another size would change what a share of it is."""
    table = read_catalog(instances_csv())
    for index, one in enumerate(instance_types):
        if one.name in table:
            shape.report(f"instance_types[{index}].name", f"{one.name} is in the shipped table already")


def _check_public_keys(tenants: Sequence[Tenant], shape: Shape) -> None:
    """Their form was checked; that content can be encrypted to them takes a try."""
    for index, tenant in enumerate(tenants):
        if tenant.capture is not None:
            from metering.capture.envelope import ContentKeyError, Recipient

            try:
                Recipient.parse(tenant.capture.public_key)
            except ContentKeyError as error:
                shape.report(f"tenants[{index}].capture.public_key", str(error))


def _lay_environment(root: Node, env: Mapping[str, str], mistakes: list[Mistake]) -> None:
    """Lay the variables over the file. An empty one is as good as not set."""
    for name in sorted(env, key=_in_order):
        value = env[name]
        if not name.startswith(PREFIX) or not value or name in _ELSEWHERE or _SERVICE_LINK.match(name):
            continue
        steps = _SHORT.get(name, name.removeprefix(PREFIX).lower()).split("__")
        if len(steps) == 1 and steps[0] not in Config.__struct_fields__:
            # Others' variables may begin like ours; a near miss of a key is ours.
            if hint := did_you_mean(steps[0], Config.__struct_fields__):
                mistakes.append(Mistake(name, 0, steps[0], "is no key" + hint))
            continue
        try:
            lay(root, steps, Node(value=value, where=name, raw=value, text=True))
        except ConfigErrors as error:
            mistakes += error.mistakes
            continue
        if steps[0] == "redis" and steps[-1] in ("url", "url_file"):
            # The two are one setting: what the environment says replaces what the file says.
            root.value["redis"].value.pop("url_file" if steps[-1] == "url" else "url", None)
    port = env.get("WEIGHBRIDGE_PORT")
    if port and not _SERVICE_LINK_PORT.match(port):
        _lay_port(root, port, "WEIGHBRIDGE_PORT", mistakes)


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort list items by their number: item 10 comes after item 9."""
    return [(int(step), "") if step.isdecimal() else (-1, step) for step in name.split("__")]


def _lay_flags(root: Node, flags: Flags, mistakes: list[Mistake]) -> None:
    if flags.port is not None:
        _lay_port(root, str(flags.port), "--port", mistakes)
    if flags.state_dir is not None:
        lay(root, ["state_dir"], Node(value=flags.state_dir, where="--state-dir"))


def _lay_port(root: Node, port: str, where: str, mistakes: list[Mistake]) -> None:
    """Change the port of `listen` and keep its host."""
    listen = root.value.get("listen")
    before = listen.value if listen and isinstance(listen.value, str) else LISTEN_DEFAULT
    host = before.rpartition(":")[0]
    try:
        host_and_port(f"127.0.0.1:{port}")
    except ValueError:
        mistakes.append(Mistake(where, 0, "listen", f"{port!r} is no port"))
        return
    lay(root, ["listen"], Node(value=f"{host}:{port}", where=where))


def _network_file_system(state_dir: str) -> str | None:
    """The network file system that `state_dir` is (or will be) on; None if it is local or cannot be told."""
    if not _MOUNTS.exists():
        return None
    kind = config_check.file_system(
        str(pathlib.Path(state_dir).resolve()), _MOUNTS.read_text(errors="replace")
    )
    return kind if kind in config_check.NETWORK_FILE_SYSTEMS else None
