"""The checks of the configuration that span fields, or that a type cannot say.

Each has its path, so that the mistake is shown at its line. Pure.
"""

import collections
import datetime
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence

from backends.catalog import Catalog
from backends.model import DEFAULT_PORTS, Backend
from gateway.configuration import instance_check
from gateway.configuration.config import (
    CardEntry,
    Config,
    Journal,
    Model,
    Peer,
    PriceEntry,
    Redis,
    SharedCostEntry,
    WorkUnitsEntry,
    host_and_port,
)
from gateway.configuration.config_shape import did_you_mean
from gateway.configuration.shared_costs_config import check_shared_cost
from gateway.configuration.tenants_check import check_networks, check_once, check_tenants
from metering.units import MICRO_USD_PER_USD, PICO_USD_PER_USD, usd_to

Report = Callable[[str, str], None]
"""Names a mistake: path, message."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?\Z")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*'()/-]*)?\Z")
_ENDPOINT = re.compile(r"https?://(?:[a-zA-Z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?/?\Z")
_TOKEN_KINDS = ("prompt", "cached_prompt", "cached", "completion", "reasoning")
_REDIS_SCHEMES = ("redis", "rediss", "unix")
_REDIS_OPTIONS = {
    "cluster",
    "db",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_keyfile",
}
_REDIS_VALUES = {
    "cluster": re.compile(r"(true|false)\Z"),
    "db": re.compile(r"[0-9]{1,4}\Z"),
    "ssl_cert_reqs": re.compile(r"(none|optional|required)\Z"),
    "ssl_check_hostname": re.compile(r"(true|false)\Z"),
}
_REDIS_FORMS = "must be redis://host:port, rediss://host:port or unix:///path/to/socket"
HIGH_RISK_DAYS_MIN = 183
"""Six months: Regulation (EU) 2024/1689, Articles 19 and 26(6)."""
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs"})


def check(config: Config, catalog: Catalog, report: Report) -> None:
    """Name every mistake in `config`, which has the right types already."""
    _check_listen(config, report)
    _check_redis(config.redis, report)
    if config.journal.bytes_max < config.journal.segment_bytes_max:
        report("journal.bytes_max", "must not be below segment_bytes_max")
    _check_archive(config.journal, config.retention_days, report)
    if config.profile == "eu-high-risk" and config.retention_days < HIGH_RISK_DAYS_MIN:
        message = (
            f"must be at least {HIGH_RISK_DAYS_MIN} with the profile eu-high-risk: "
            "the EU AI Act has logs kept for six months"
        )
        report("retention_days", message)
    _check_origins(config.cors.origins, report)
    _check_peers(config.audit.peers, report)
    check_networks("server.trusted_proxies", config.server.trusted_proxies, report)
    check_tenants(config.tenants, [model.name for model in config.models], report)
    _check_captures(config, report)
    check_once(report, "backends", [backend.name for backend in config.backends], "name")
    for index, backend in enumerate(config.backends):
        _check_backend(f"backends[{index}]", backend, catalog, report)
    instance_check.check(config.backends, catalog, report)
    _check_models(config, report)
    check_prices(config.prices, report)
    check_once(report, "instance_types", [one.name for one in config.instance_types], "name")
    check_shared_costs(config.shared_costs, report)


def check_shared_costs(costs: Sequence[SharedCostEntry], report: Report) -> None:
    """Name every mistake in the shared costs."""
    check_once(report, "shared_costs", [cost.name for cost in costs], "name")
    for index, cost in enumerate(costs):
        check_shared_cost(f"shared_costs[{index}]", cost, report)


def check_prices(prices: Sequence[PriceEntry], report: Report) -> None:
    """Name every mistake in the prices of instances."""
    check_once(report, "prices", [_price_key(price) for price in prices])
    for index, price in enumerate(prices):
        _check_price(f"prices[{index}]", price, report)


def file_system(path: str, mounts: str) -> str:
    """The type of the file system that the absolute `path` is on; "" if unknown.

    mounts: the text of Linux's /proc/self/mounts; of two at one place the later hides the earlier.
    """
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1])
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= best:
            best, found = len(place), fields[2]
    return found


def _check_listen(config: Config, report: Report) -> None:
    for path, listen in (("listen", config.listen), ("ops.listen", config.ops.listen)):
        try:
            if listen is not None:
                host_and_port(listen)
        except ValueError as error:
            report(path, str(error))
    if config.ops.listen == config.listen and not config.listen.endswith(":0"):
        report("ops.listen", "is the same address as listen")


def _check_archive(journal: Journal, retention_days: int, report: Report) -> None:
    place = journal.archive or ""
    scheme, colon, rest = place.partition("://")
    if colon and scheme not in ("file", "s3"):
        report("journal.archive", "must be a path, file:///path or s3://bucket/prefix")
    elif scheme == "file" and colon and not rest.startswith("/"):
        report("journal.archive", "must have a whole path: file:///path")
    elif scheme == "s3" and colon and not _BUCKET.match(rest):
        report("journal.archive", "must name a bucket, and no user or options: s3://bucket/prefix")
    for key, value in (
        ("archive_endpoint", journal.archive_endpoint),
        ("archive_region", journal.archive_region),
    ):
        if value is not None and not (colon and scheme == "s3"):
            report(f"journal.{key}", "goes with an archive at s3://… only")
    if (lock := journal.archive_lock) is not None:
        if not (colon and scheme == "s3"):
            report("journal.archive_lock", "goes with an archive at s3://… only")
        if lock.days < retention_days:
            message = (
                f"must not be below retention_days, {retention_days}: what is kept longer would be unlocked"
            )
            report("journal.archive_lock.days", message)
    if journal.archive_endpoint is not None and not _ENDPOINT.match(journal.archive_endpoint):
        report("journal.archive_endpoint", "must be http://host[:port] or https://host[:port]")


def _check_redis(redis: Redis, report: Report) -> None:
    if redis.url is not None and redis.url_file is not None:
        report("redis.url_file", "cannot stand beside redis.url; give one of them")
    if redis.url is not None and (wrong := wrong_redis_url(redis.url)):
        report("redis.url", wrong)
    if redis.ca_file is not None and (wrong := wrong_redis_ca(redis.url, redis.url_file)):
        report("redis.ca_file", wrong)


def _check_origins(origins: Sequence[str], report: Report) -> None:
    check_once(report, "cors.origins", origins)
    for index, origin in enumerate(origins):
        if origin == "*" and len(origins) > 1:
            report(f"cors.origins[{index}]", '"*" is every origin; it stands alone')
        elif origin != "*" and not _ORIGIN.match(origin):
            message = 'must be an origin as browsers send it, as in "https://app.example.com", or "*"'
            report(f"cors.origins[{index}]", message)


def wrong_redis_url(url: str) -> str | None:
    """Why this is no URL of a store; None if it is one. The URL may hold a password: it is not repeated."""
    scheme, colon, rest = url.partition("://")
    place, _, query = rest.partition("?")
    credentials, at, place = place.rpartition("@")
    if not colon or scheme not in _REDIS_SCHEMES or not place:
        return _REDIS_FORMS
    try:
        options = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        return _REDIS_FORMS
    if scheme == "unix":
        hosts = []
    else:
        place, _, db = place.partition("/")
        hosts = place.split(",")
        options += [("db", db)] if db else []
        if not all(_is_host(scheme + "://" + credentials + at + host) for host in hosts):
            return _REDIS_FORMS
    for name, value in options:
        if name not in _REDIS_OPTIONS:
            return f"must have no option but {', '.join(sorted(_REDIS_OPTIONS))}"
        if name in _REDIS_VALUES and not _REDIS_VALUES[name].match(value):
            return f"has an option {name} with a value that it cannot have"
    cluster = ("cluster", "true") in options
    if len(hosts) > 1 and not cluster:
        return "has several hosts, which only a cluster has: add ?cluster=true"
    if cluster and (not hosts or any(name == "db" and value != "0" for name, value in options)):
        return "a cluster has neither a unix socket nor a database but 0"
    return None


def _is_host(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def wrong_redis_ca(url: str | None, url_file: str | None) -> str | None:
    """Why no CA can stand beside this; None if it can. A URL in a file is looked at when it is read."""
    if url is None and url_file is None:
        return "goes with redis.url or redis.url_file"
    if url is not None and not url.startswith("rediss://"):
        return "goes with a rediss:// URL only"
    return None


def _check_peers(peers: Sequence[Peer], report: Report) -> None:
    check_once(report, "audit.peers", [peer.url for peer in peers], "url")
    for index, peer in enumerate(peers):
        path = f"audit.peers[{index}]"
        if wrong := wrong_backend_url(peer.url):
            report(f"{path}.url", wrong)
        elif peer.ca_file is not None and not peer.url.startswith("https:"):
            report(f"{path}.ca_file", "goes with an https url only")


def _check_captures(config: Config, report: Report) -> None:
    for index, tenant in enumerate(config.tenants):
        if tenant.capture is not None and tenant.capture.retention_days > config.retention_days:
            message = f"must not be longer than that of the journal, which finds it: {config.retention_days}"
            report(f"tenants[{index}].capture.retention_days", message)


def _check_backend(path: str, backend: Backend, catalog: Catalog, report: Report) -> None:
    if wrong := wrong_backend_url(backend.url):
        report(f"{path}.url", wrong)
    elif not backend.tls:
        for key in ("ca_file", "server_name"):
            if getattr(backend, key) is not None:
                report(f"{path}.{key}", "goes with an https url only")
    known = catalog.get(backend.instance_type) if backend.instance_type else None
    units_total = backend.units_total or (known.units_total if known else None)
    if backend.units is not None and units_total is None:
        kind = backend.instance_type or "an instance that is not named"
        report(f"{path}.units", f"units_total must be given too: the size of {kind} is not known")
    if backend.units is not None and units_total is not None and backend.units > units_total:
        report(f"{path}.units", f"{backend.units} is more than the instance has: {units_total}")


def wrong_backend_url(url: str) -> str | None:
    """Why this is no URL of a backend; None if it is one."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        return "must be http://host[:port] or https://host[:port]"
    if parts.username is not None or parts.password is not None:
        return "must hold no user or password; a key stands in key_file"
    if parts.path.rstrip("/") == "/v1":
        return f"must be without the path /v1: {parts.scheme}://host[:port]"
    if parts.path.strip("/") or parts.query or parts.fragment:
        return f"must have nothing after the port: {parts.scheme}://host[:port]"
    return None


def _check_models(config: Config, report: Report) -> None:
    names = collections.Counter(model.name for model in config.models)
    taken: dict[str, str] = {}
    check_once(report, "models", [model.name for model in config.models], "name")
    for index, model in enumerate(config.models):
        path = f"models[{index}]"
        for number, alias in enumerate(model.aliases):
            here = f"{path}.aliases[{number}]"
            if alias in names:
                report(here, f"{alias} is the name of a model already")
            elif alias in taken:
                report(here, f"{alias} is taken by {taken[alias]}")
            taken.setdefault(alias, here)
        _check_tiers(path, model, [backend.name for backend in config.backends], report)
        check_once(report, f"{path}.rate_cards", [(_hardware(card), card.date) for card in model.rate_cards])
        for number, card in enumerate(model.rate_cards):
            _check_card(f"{path}.rate_cards[{number}]", card, report)
        check_once(report, f"{path}.work_units", [(_hardware(one), one.date) for one in model.work_units])
        for number, one in enumerate(model.work_units):
            _check_hardware(f"{path}.work_units[{number}]", one, report)


def _check_tiers(path: str, model: Model, backends: Sequence[str], report: Report) -> None:
    seen: dict[str, str] = {}
    for here, name in _members(path, model):
        if name not in backends:
            report(here, f"there is no backend {name}" + did_you_mean(name, backends))
        elif name in seen:
            report(here, f"{name} stands in {seen[name]} already")
        seen.setdefault(name, here)


def _members(path: str, model: Model) -> Iterator[tuple[str, str]]:
    for tier_index, tier in enumerate(model.tiers):
        for index, name in enumerate(tier.backends):
            yield f"{path}.tiers[{tier_index}].backends[{index}]", name


def _hardware(entry: CardEntry | WorkUnitsEntry) -> str | None:
    return entry.instance_type or entry.family


def _check_hardware(path: str, entry: CardEntry | WorkUnitsEntry, report: Report) -> None:
    if (entry.family is None) == (entry.instance_type is None):
        report(path, "must have one of family and instance_type")
    _check_date(f"{path}.date", entry.date, report)


def _check_card(path: str, card: CardEntry, report: Report) -> None:
    _check_hardware(path, card, report)
    for key in ("prompt", "cached_prompt", "completion", "per_request"):
        amount: str | None = getattr(card, key)
        if amount is not None:
            _check_usd(f"{path}.{key}", amount, PICO_USD_PER_USD, report)
    for kind, amount in card.other.items():
        if kind.removesuffix("_tokens") in _TOKEN_KINDS:
            report(
                f"{path}.other.{kind}", "is priced already: it is a part of the prompt or of the completion"
            )
        _check_usd(f"{path}.other.{kind}", amount, PICO_USD_PER_USD, report)


def _price_key(price: PriceEntry) -> tuple[str | None, ...]:
    return price.instance_type, price.region, price.purchase_option, price.date


def _check_price(path: str, price: PriceEntry, report: Report) -> None:
    _check_date(f"{path}.date", price.date, report)
    _check_usd(f"{path}.usd_per_hour", price.usd_per_hour, MICRO_USD_PER_USD, report)


def _check_usd(path: str, amount: str, parts_per_usd: int, report: Report) -> None:
    try:
        usd_to(amount, parts_per_usd)
    except ValueError as error:
        report(path, str(error))


def _check_date(path: str, date: str, report: Report) -> None:
    try:
        if not _DATE.match(date):
            raise ValueError("not of the form YYYY-MM-DD")
        datetime.date.fromisoformat(date)
    except ValueError as error:
        report(path, f"{date!r} is no date: {error}")
