"""Tenants and keys while gateways run: made, bound, replaced, revoked, on every gateway, with and without a store."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support import gateway, mutants, stores
from tests.support.gateway import ROOT, Gateway, eventually
from tests.support.rawbackend import Scripted
from tests.support.stage import SIZED
from tests.support.stores import Running

pytestmark = pytest.mark.integration
ASK = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
KNOWN_S = 1.0
"""Within so long a change counts everywhere."""
SLACK_S = 2.0
"""For a machine that does other things."""


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> str | None:
        return self.body["error"]["code"]


def ask(
    front: Gateway, method: str, path: str, key: str | None = None, body: object = None, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
    sent = {"content-type": "application/json"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    sent |= {"authorization": f"Bearer {key}"} if key else {}
    with contextlib.closing(connection):
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, data, sent)
        answer = connection.getresponse()
        return Answer(answer.status, json.loads(answer.read() or b"null"), dict(answer.headers))


def call(front: Gateway, key: str, path: str = "/v1/chat/completions", **headers: str) -> Answer:
    return ask(front, "POST", path, key, ASK | {"input": "x"}, **headers)


def admin(front: Gateway, method: str, path: str, body: object = None, **headers: str) -> Answer:
    return ask(front, method, f"/admin/v1{path}", front.keys["acme"], body, **headers)


def made_key(front: Gateway, tenant: str = "acme", **settings: object) -> tuple[str, str]:
    """A key and its id."""
    made = admin(front, "POST", "/keys", {"tenant": tenant, **settings})
    assert made.status == 201, made.body
    assert hashlib.sha256(made.body["key"].encode()).hexdigest()[:12] == made.body["id"]
    return made.body["key"], made.body["id"]


def becomes(front: Gateway, key: str, status: int, since_s: float) -> Answer:
    """A call with this key is answered so, soon enough, by each worker."""
    eventually(lambda: {call(front, key).status for _ in range(12)} == {status}, within_s=KNOWN_S + SLACK_S)
    assert time.monotonic() - since_s < KNOWN_S + SLACK_S
    return call(front, key)


def backend(b1: Scripted) -> dict:
    return {"name": "b1", "url": f"http://127.0.0.1:{b1.port}", "model": "m1", "slots": 8}


@pytest.fixture(scope="module")
def b1() -> Iterator[Scripted]:
    one = Scripted(SIZED)
    with contextlib.ExitStack() as stack:
        stack.callback(one.stop)
        yield one


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with stores.single(stores.valkey_binary(), tmp_path_factory.mktemp("store"), user=True) as one, one:
        yield one


@contextlib.contextmanager
def two_gateways(
    b1: Scripted, store: Running, directory: pathlib.Path, mutant: str | None = None
) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways of one store; the first has two workers."""
    env = mutants.environment(mutant) if mutant else None
    with contextlib.ExitStack() as stack:
        pair = []
        for name, workers in (("one", 2), ("two", 1)):
            (directory / name).mkdir()
            running = gateway.running(
                directory / name, [backend(b1)], redis={"url": store.url}, workers=workers, env=env
            )
            pair.append(stack.enter_context(running))
        yield pair[0], pair[1]


@pytest.fixture(scope="module")
def fronts(
    b1: Scripted, store: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Gateway]]:
    with two_gateways(b1, store, tmp_path_factory.mktemp("fronts")) as pair:
        yield pair


@pytest.fixture
def front(fronts: tuple[Gateway, Gateway]) -> Gateway:
    return fronts[0]


def test_a_tenant_and_its_key_are_made_and_used_everywhere(fronts: tuple[Gateway, Gateway]) -> None:
    one, two = fronts
    settings = {"name": "globex", "projects": ["web"], "tags": {"owner": "ann"}, "share": 3}
    made = admin(one, "POST", "/tenants", settings)
    assert (made.status, made.headers["etag"], made.body["source"]) == (201, '"1"', "directory")
    assert (made.body["share"], made.body["tags"], made.body["keys"]) == (3, {"owner": "ann"}, 0)
    key, key_id = made_key(one, "globex", name="first")
    since_s = time.monotonic()
    for each in fronts:
        becomes(each, key, 200, since_s)
    (line, *_) = [line for line in two.lines("call") if line["key_id"] == key_id]
    assert (line["tenant"], line["project"], line["tags"]) == ("globex", "web", {"owner": "ann"})
    assert admin(one, "GET", "/tenants/globex").body["keys"] == 1
    assert admin(two, "GET", f"/keys/{key_id}").body["name"] == "first"


def test_the_key_is_shown_once_and_is_nowhere(front: Gateway, store: Running) -> None:
    key, key_id = made_key(front, name="secret")
    shown = admin(front, "GET", f"/keys/{key_id}")
    listed = admin(front, "GET", "/keys")
    assert key not in json.dumps([shown.body, listed.body])
    assert shown.headers["cache-control"] == "no-store"
    front_files = [path for path in front.state_dir.rglob("*") if path.is_file()]
    everything = [path.read_bytes() for path in [*front_files, front.log]]
    everything.append(repr(store.ask("HGETALL", "wb:1:directory")).encode())
    assert not [one for one in everything if key.encode() in one]
    assert stat.S_IMODE((front.state_dir / "directory.json").stat().st_mode) == 0o600


def test_a_revoked_key_opens_nothing_on_any_gateway_a_second_later(fronts: tuple[Gateway, Gateway]) -> None:
    one, two = fronts
    key, key_id = made_key(one)
    for each in fronts:
        becomes(each, key, 200, time.monotonic())
    since_s = time.monotonic()
    assert admin(two, "POST", f"/keys/{key_id}/revoke").body["state"] == "revoked"
    for each in fronts:
        answer = becomes(each, key, 401, since_s)
        assert (answer.code, "revoked" in answer.body["error"]["message"]) == ("invalid_api_key", True)
    for again in ("enable", "rotate", "revoke"):
        assert admin(one, "POST", f"/keys/{key_id}/{again}").status == 409
    refused = eventually(lambda: [line for line in one.lines("refused") if line["key_id"] == key_id])
    assert {(line["tenant"], line["reason"]) for line in refused} == {("acme", "KeyBarred")}


def test_disabled_keys_and_tenants_come_back(front: Gateway) -> None:
    admin(front, "POST", "/tenants", {"name": "initech"})
    key, key_id = made_key(front, "initech")
    for what, state in ((f"/keys/{key_id}", "disabled"), ("/tenants/initech", "tenant_disabled")):
        assert admin(front, "POST", f"{what}/disable").status == 200
        becomes(front, key, 401, time.monotonic())
        assert admin(front, "GET", f"/keys/{key_id}").body["state"] == state
        version = admin(front, "GET", what).body["version"]
        assert admin(front, "POST", f"{what}/disable").body["version"] == version  # nothing is nothing
        assert admin(front, "POST", f"{what}/enable").status == 200
        becomes(front, key, 200, time.monotonic())


def test_a_rotated_key_overlaps_with_its_successor_and_ends(front: Gateway) -> None:
    key, key_id = made_key(front, models=["m1"])
    becomes(front, key, 200, time.monotonic())
    rotated = admin(front, "POST", f"/keys/{key_id}/rotate", {"overlap_s": 4})
    assert (rotated.status, rotated.body["replaces"], rotated.body["models"]) == (201, key_id, ["m1"])
    becomes(front, rotated.body["key"], 200, time.monotonic())
    assert call(front, key).status == 200
    eventually(lambda: {call(front, key).status for _ in range(6)} == {401}, within_s=8)
    assert "expired" in call(front, key).body["error"]["message"]
    assert admin(front, "GET", f"/keys/{key_id}").body["state"] == "expired"
    assert call(front, rotated.body["key"]).status == 200


def test_a_key_is_for_its_models_endpoints_and_networks(front: Gateway) -> None:
    chat, _ = made_key(front, endpoints=["chat"])
    becomes(front, chat, 200, time.monotonic())
    answer = call(front, chat, "/v1/embeddings")
    assert (answer.status, "embeddings" in answer.body["error"]["message"]) == (403, True)
    here, here_id = made_key(front, networks=["127.0.0.0/8"])
    becomes(front, here, 200, time.monotonic())
    assert admin(front, "PATCH", f"/keys/{here_id}", {"networks": ["10.0.0.0/8", "::1"]}).status == 200
    becomes(front, here, 403, time.monotonic())
    assert call(front, here, x_forwarded_for="10.0.0.1").status == 403  # nobody here is a proxy
    assert ask(front, "GET", "/v1/models", here).status == 403
    assert admin(front, "POST", "/keys", {"tenant": "acme", "models": ["m9"]}).status == 400


def test_changes_are_about_a_version(front: Gateway) -> None:
    admin(front, "POST", "/tenants", {"name": "versions"})
    first = admin(front, "PATCH", "/tenants/versions", {"share": 2}, if_match='"1"')
    assert (first.status, first.body["version"], first.headers["etag"]) == (200, 2, '"2"')
    assert admin(front, "PATCH", "/tenants/versions", {"share": 3}, if_match='"1"').status == 412
    assert admin(front, "PATCH", "/tenants/versions", {"share": None}, if_match="2").body["share"] == 1
    assert admin(front, "PATCH", "/tenants/versions", {"share": 4}, if_match="*").body["version"] == 4
    assert admin(front, "PATCH", "/tenants/versions", {}, if_match="x").status == 400


def test_of_changes_at_once_with_one_version_one_is_made(fronts: tuple[Gateway, Gateway]) -> None:
    one, _ = fronts
    admin(one, "POST", "/tenants", {"name": "race"})
    eventually(lambda: all(admin(each, "GET", "/tenants/race").status == 200 for each in fronts))
    program = (
        "import http.client,sys,json\n"
        "port,key,share=sys.argv[1:]\n"
        "c=http.client.HTTPConnection('127.0.0.1',int(port),timeout=20)\n"
        "c.request('PATCH','/admin/v1/tenants/race',json.dumps({'share':int(share)}),"
        "{'authorization':'Bearer '+key,'if-match':'\"1\"'})\n"
        "print(c.getresponse().status)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(each.port), each.keys["acme"], str(number)],
            stdout=subprocess.PIPE, text=True,
        )
        for number, each in enumerate([*fronts] * 4, 2)
    ]  # fmt: skip
    statuses = [child.communicate(timeout=60)[0].strip() for child in children]
    assert sorted(statuses) == ["200"] + ["412"] * 7
    told = [line for each in fronts for line in each.lines("directory") if line["entry"]["name"] == "race"]
    assert sorted(line["entry"]["version"] for line in told) == [1, 2]


def test_what_the_file_has_is_shown_and_changed_there(front: Gateway) -> None:
    found = admin(front, "GET", "/tenants/acme").body
    assert (found["source"], found["version"]) == ("file", None)
    assert admin(front, "PATCH", "/tenants/acme", {"share": 2}).status == 409
    assert "file" in admin(front, "POST", "/tenants/acme/disable").body["error"]["message"]
    assert admin(front, "POST", "/tenants", {"name": "acme"}).status == 409
    own = hashlib.sha256(front.keys["acme"].encode()).hexdigest()[:12]
    assert admin(front, "GET", f"/keys/{own}").body["source"] == "file"
    assert admin(front, "POST", f"/keys/{own}/revoke").status == 409


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tenants", {}, "name"),
        ("/tenants", {"name": "A"}, "name"),
        ("/tenants", {"name": "x", "share": 0}, "share"),
        ("/tenants", {"name": "x", "sahre": 1}, "sahre"),
        ("/tenants", {"name": "x", "keys": []}, "keys"),
        (
            "/tenants",
            {"name": "x", "limits": {"budgets": [{"usd": "-1", "per": "day"}]}},
            "limits.budgets[0].usd",
        ),
        ("/keys", {"tenant": "nobody"}, "tenant"),
        ("/keys", {"tenant": "acme", "hash": "sha256:" + "0" * 64}, "hash"),
        ("/keys", {"tenant": "acme", "scopes": ["root"]}, "scopes[0]"),
        ("/keys", {"tenant": "acme", "networks": ["10.0.0.1/8"]}, "networks[0]"),
        ("/keys", {"tenant": "acme", "expires": "2020-01-01"}, "expires"),
        ("/keys", {"tenant": "acme", "endpoints": ["admin"]}, "endpoints[0]"),
        ("/keys", [], None),
        ("/keys", b"{", None),
        ("/keys/0123456789ab/rotate", {"overlap_s": -1}, "overlap_s"),
        ("/keys/0123456789ab/revoke", {"why": 1}, "why"),
    ],
)
def test_a_mistake_is_named(front: Gateway, path: str, body: object, param: str | None) -> None:
    answer = admin(front, "POST", path, body)
    assert (answer.status, answer.body["error"]["param"]) == (400, param), answer.body


def test_what_is_too_long_is_refused(front: Gateway) -> None:
    assert admin(front, "POST", "/tenants", b"[" * 70_000).status == 413
    assert admin(front, "POST", "/tenants", b"[" * 60_000).status == 400
    many = {f"p{number}": {"concurrency": 1} for number in range(200)}
    wide = {"name": "wide", "projects": list(many), "project_limits": many}
    assert "12,288 bytes" in admin(front, "POST", "/tenants", wide).body["error"]["message"]


def test_lists_come_page_by_page(front: Gateway) -> None:
    for number in range(5):
        admin(front, "POST", "/tenants", {"name": f"page-{number}"})
    names, cursor = [], ""
    while cursor is not None:
        page = admin(front, "GET", f"/tenants?limit=2{cursor and '&cursor=' + cursor}").body
        names += [one["name"] for one in page["data"]]
        cursor = page["next"]
    assert (
        names == sorted(set(names)) == [one["name"] for one in admin(front, "GET", "/tenants").body["data"]]
    )
    assert admin(front, "GET", "/keys?tenant=page-1").body["data"] == []
    assert admin(front, "GET", "/keys?limit=0").status == 400
    assert admin(front, "GET", "/tenants?after=x").status == 400
    assert admin(front, "GET", "/tenants/nobody").status == 404


def test_every_change_and_every_refusal_is_told(front: Gateway) -> None:
    actor = hashlib.sha256(front.keys["acme"].encode()).hexdigest()[:12]
    _, key_id = made_key(front, name="told")
    admin(front, "POST", f"/keys/{key_id}/revoke", request_id="x")
    admin(front, "POST", f"/keys/{key_id}/revoke")
    told = [line for line in front.lines("directory") if line["entry"]["name"] == key_id]
    told.sort(key=lambda line: line["at_ns"])  # either worker may have made either change
    assert [(line["change"], line["actor"], line["entry"]["version"]) for line in told] == [
        ("create", actor, 1), ("revoke", actor, 2),
    ]  # fmt: skip
    looks = [line for line in front.lines("event") if line["topic"] == "admin"]
    mine = [line["data"]["status"] for line in looks if key_id in line["data"]["path"]]
    assert sorted(mine) == ["200", "409"]
    assert ask(front, "GET", "/admin/v1/keys", "wb-wrong").status == 401
    refused = eventually(
        lambda: [
            line for line in front.lines("event")
            if line["topic"] == "sign_in_refused" and line["data"]["face"] == "admin"
        ]
    )  # fmt: skip
    assert refused[-1]["data"]["status"] == "401"
    changes = ask(front, "GET", "/audit/v1/changes?topic=directory&count=1000", front.keys["acme"]).body[
        "data"
    ]
    assert [(one["data"]["change"], one["actor"]) for one in changes if one["data"]["name"] == key_id] == [
        ("create", actor), ("revoke", actor),
    ]  # fmt: skip


def test_a_store_that_lost_everything_changes_nobodys_rights(
    fronts: tuple[Gateway, Gateway], store: Running
) -> None:
    one, two = fronts
    good, good_id = made_key(one)
    revoked, revoked_id = made_key(one)
    becomes(two, good, 200, time.monotonic())
    admin(one, "POST", f"/keys/{revoked_id}/revoke")
    becomes(two, revoked, 401, time.monotonic())
    store.everywhere("FLUSHALL")
    for each in fronts:
        assert (call(each, good).status, call(each, revoked).status) == (200, 401)
    there = eventually(lambda: store.ask("HGET", "wb:1:directory", f"key:{revoked_id}"))
    assert json.loads(there)["revoked"] is True
    eventually(lambda: store.ask("HGET", "wb:1:directory", f"key:{good_id}"))
    for each in fronts:
        assert (call(each, good).status, call(each, revoked).status) == (200, 401)
    # An older copy of the hash, as a lagging replica has it, raises nobody from the dead.
    old = json.loads(there) | {"revoked": False, "version": 1}
    store.ask("HSET", "wb:1:directory", f"key:{revoked_id}", json.dumps(old), "revision", "other:1")
    eventually(lambda: json.loads(store.ask("HGET", "wb:1:directory", f"key:{revoked_id}"))["revoked"])
    for each in fronts:
        assert call(each, revoked).status == 401


def run(front: Gateway, *words: str, code: int | None = 0) -> str:
    """What a command says. code: its exit status; None: any."""
    ran = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *words, "-c", str(front.config_file)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert code is None or ran.returncode == code, ran.stderr
    return ran.stdout if ran.returncode == 0 else ran.stderr


def test_all_of_it_by_commands(front: Gateway) -> None:
    said = dict(line.split(": ") for line in run(front, "keys", "bootstrap").splitlines())
    file = pathlib.Path(said["key_file"])
    assert (file, stat.S_IMODE(file.stat().st_mode)) == (front.state_dir / "admin-key", 0o600)
    assert said["key_id"] in run(front, "keys", "bootstrap")
    operator = file.read_text().strip()
    eventually(lambda: ask(front, "GET", "/admin/v1/keys", operator).status == 200)
    assert call(front, operator).status == 403
    run(
        front,
        "tenants",
        "create",
        "hooli",
        "tags.owner=ann",
        "limits.requests_per_minute=600",
        'projects=["web"]',
    )
    run(front, "tenants", "set", "hooli", "tags.owner=bob", "share=2")
    shown = json.loads(run(front, "tenants", "show", "hooli", "--json"))
    assert (shown["tags"], shown["share"], shown["limits"]["requests_per_minute"]) == (
        {"owner": "bob"},
        2,
        600,
    )
    key = run(front, "keys", "create", "--tenant", "hooli", "name=web").partition("key: ")[2].split()[0]
    eventually(lambda: call(front, key).status == 200)
    (found,) = [
        json.loads(line) for line in run(front, "keys", "list", "--tenant", "hooli", "--json").splitlines()
    ]
    fresh = run(front, "keys", "rotate", found["id"], "--overlap-s", "0").partition("key: ")[2].split()[0]
    eventually(lambda: (call(front, key).status, call(front, fresh).status) == (401, 200))
    fresh_id = hashlib.sha256(fresh.encode()).hexdigest()[:12]
    for word, status in (("disable", 401), ("enable", 200), ("revoke", 401)):
        assert fresh_id in run(front, "keys", word, fresh_id)
        eventually(lambda status=status: call(front, fresh).status == status)
    assert "revoked" in run(front, "keys", "show", fresh_id)
    assert "hooli" in run(front, "tenants", "list")
    assert "disabled" in run(front, "tenants", "disable", "hooli")
    assert "409" in run(front, "keys", "enable", fresh_id, code=1)
    assert "404" in run(front, "tenants", "show", "nobody", code=1)
    assert "no-such-file" in run(front, "tenants", "list", "--key-file", "no-such-file", code=2)
    told = [line for line in front.lines("directory") if line["change"] == "bootstrap"]
    assert [line["entry"]["name"] for line in told] == ["operators", said["key_id"]]
    assert all(line["actor"].startswith("cli:") for line in told)


def test_who_has_shut_himself_out_is_told_the_way_back_in(front: Gateway) -> None:
    """By whoever may write to the state directory: there is always one more key to be made."""
    place = ("--tenant", "shut-out", "--key-file", str(front.state_dir / "shut-out"))

    def bootstrap(code: int | None = 0) -> str:
        return run(front, "keys", "bootstrap", *place, code=code)

    def asked(*words: str) -> None:
        run(front, *words, "--key-file", place[-1])

    identity = bootstrap().partition("key_id: ")[2].strip()
    operator = pathlib.Path(place[-1]).read_text().strip()
    eventually(lambda: ask(front, "GET", "/admin/v1/keys", operator).status == 200)
    asked("keys", "disable", identity)
    eventually(lambda: "is disabled; remove that file" in bootstrap(None))
    pathlib.Path(place[-1]).unlink()
    identity = bootstrap().partition("key_id: ")[2].strip()
    operator = pathlib.Path(place[-1]).read_text().strip()
    eventually(lambda: ask(front, "GET", "/admin/v1/keys", operator).status == 200)
    asked("keys", "rotate", identity, "--overlap-s", "1")
    eventually(lambda: "has expired; remove that file" in bootstrap(None))
    pathlib.Path(place[-1]).unlink()
    bootstrap()
    operator = pathlib.Path(place[-1]).read_text().strip()
    eventually(lambda: ask(front, "GET", "/admin/v1/keys", operator).status == 200)
    asked("tenants", "disable", "shut-out")
    eventually(lambda: "shut-out is disabled, and its keys open nothing" in bootstrap(None))


@pytest.fixture
def lone(b1: Scripted, tmp_path: pathlib.Path) -> Iterator[Gateway]:
    """A gateway with a store of its own, two workers, and little patience with a store that is away."""
    with gateway.running(tmp_path, [backend(b1)], workers=2, auth={"stale_max_s": 4}) as one:
        yield one


def test_without_the_store_workers_hear_of_each_other_until_it_was_away_for_too_long(lone: Gateway) -> None:
    key, key_id = made_key(lone)
    other, _ = made_key(lone)
    becomes(lone, key, 200, time.monotonic())
    becomes(lone, other, 200, time.monotonic())
    stopped = _store_of(lone)
    os.kill(stopped, signal.SIGSTOP)
    try:
        since_s = time.monotonic()
        assert admin(lone, "POST", f"/keys/{key_id}/revoke").status == 200
        eventually(lambda: {call(lone, key).status for _ in range(8)} == {401}, within_s=10)
        answer = eventually(lambda: (one := call(lone, other)).status == 503 and one, within_s=30)
        assert answer.code == "directory_stale"
        assert time.monotonic() - since_s >= 3
        assert call(lone, lone.keys["acme"]).status == 200  # the file's are believed for ever
    finally:
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: {call(lone, other).status for _ in range(8)} == {200}, within_s=20)
    assert call(lone, key).status == 401


def _store_of(front: Gateway) -> int:
    """The process id of its embedded store."""
    children = (
        pathlib.Path(f"/proc/{front.process.pid}/task/{front.process.pid}/children").read_text().split()
    )
    (found,) = [int(one) for one in children if "valkey" in pathlib.Path(f"/proc/{one}/comm").read_text()]
    return found


def test_a_start_knows_what_was_before_also_from_the_journals_alone(
    b1: Scripted, tmp_path: pathlib.Path
) -> None:
    with gateway.running(tmp_path, [backend(b1)]) as front:
        good, _ = made_key(front)
        revoked, revoked_id = made_key(front)
        admin(front, "POST", f"/keys/{revoked_id}/revoke")
        for lost in ([], ["directory.json"], ["directory.json", "store"]):
            front.stop()
            for name in lost:
                path = front.state_dir / name
                subprocess.run(["rm", "-r", str(path)], check=True)
            front.restart()
            front.wait_ready()
            assert (call(front, good).status, call(front, revoked).status) == (200, 401), lost


def test_an_operators_key_opens_a_gateway_that_has_none(b1: Scripted, tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [backend(b1)], tenants=(), ready=False) as front:
        front.wait_ready()
        run(front, "keys", "bootstrap", "--scope", "operator", "--scope", "inference")
        key = (front.state_dir / "admin-key").read_text().strip()
        eventually(lambda: call(front, key).status == 200)
        front.keys["acme"] = key
        made, _ = made_key(front, "operators", scopes=["inference"])
        becomes(front, made, 200, time.monotonic())


def test_a_directory_that_breaks_a_law_is_found(b1: Scripted, tmp_path: pathlib.Path) -> None:
    """Each of the tests above sees to one law; without it, it fails."""
    laws = {
        "revoked_forgotten": lambda pair, store: test_a_store_that_lost_everything_changes_nobodys_rights(
            pair, store
        ),
        "change_untold": lambda pair, _: test_every_change_and_every_refusal_is_told(pair[0]),
        "copies_unheard": lambda pair, _: test_a_revoked_key_opens_nothing_on_any_gateway_a_second_later(
            pair
        ),
    }
    for mutant, law in laws.items():
        directory = tmp_path / mutant
        directory.mkdir()
        with (
            stores.single(stores.valkey_binary(), directory / "store", user=True) as store,
            store,
            two_gateways(b1, store, directory, mutant) as pair,
            pytest.raises(AssertionError),
        ):
            law(pair, store)
