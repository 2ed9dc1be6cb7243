"""Changes that are asked for: what they make, and why they cannot be made."""

import functools

import msgspec
import pytest

from gateway.api.auth import Keys, hash_of, key_id
from gateway.api.errors import Conflict, GatewayError, InvalidRequest, NotFound, VersionDiffers
from gateway.configuration.config import Key, Tenant
from gateway.directory import edits, shown
from gateway.directory.directory import Directory
from gateway.directory.edits import Edit, Here
from metering.ledger.directory import Copy
from metering.record import Entry

FILE = (Tenant(name="acme", projects=("web",), keys=(Key(hash=hash_of("wb-file")),)),)
FILE_KEY = key_id(hash_of("wb-file"))
NOW_NS = 1_796_000_000 * 10**9  # 2026-11-30


class World:
    """A directory that edits are made to."""

    def __init__(self) -> None:
        self.copy = Copy()
        self.compiled = Directory(FILE, Keys(), NOW_NS)

    def make(self, edit: Edit) -> list[Entry]:
        made = edit(Here(self.compiled, self.copy, ("m1", "m2"), NOW_NS))
        self.compiled.take(self.copy.take(made), NOW_NS)
        return made


@pytest.fixture
def world() -> World:
    one = World()
    one.make(edits.create_tenant({"name": "globex", "projects": ["web"]}))
    one.make(edits.create_key({"tenant": "globex", "name": "k", "expires": "2027-01-01"}, hash_of("wb-k")))
    return one


ID = key_id(hash_of("wb-k"))


def said(entry: Entry) -> dict:
    return msgspec.json.decode(bytes(entry.data))


def test_a_setting_that_is_named_changes_and_null_takes_it_back(world: World) -> None:
    (made,) = world.make(edits.set_tenant("globex", {"share": 5, "tags": {"a": "b"}}, 1))
    assert (made.version, said(made)["share"], said(made)["projects"]) == (2, 5, ["web"])
    (made,) = world.make(edits.set_tenant("globex", {"share": None}, None))
    assert (made.version, said(made)["share"], said(made)["tags"]) == (3, 1, {"a": "b"})
    (same,) = world.make(edits.set_tenant("globex", {"share": 1}, 3))
    assert same.version == 3
    (made,) = world.make(edits.set_key(ID, {"models": ["m1"], "disabled": True}, None))
    assert (made.version, said(made)["models"], said(made)["name"]) == (2, ["m1"], "k")


def test_a_rotation_keeps_the_settings_and_ends_the_old_key(world: World) -> None:
    fresh, old = world.make(edits.rotate_key(ID, hash_of("wb-l"), 60, None))
    assert (fresh.name, fresh.version, said(fresh)["replaces"]) == (key_id(hash_of("wb-l")), 1, ID)
    assert (said(fresh)["name"], said(fresh)["expires"]) == ("k", "2027-01-01")
    assert (old.name, old.version, said(old)["expires"]) == (ID, 2, "2026-11-30T00:54:20Z")
    _, old = world.make(edits.rotate_key(ID, hash_of("wb-m"), 3_600, None))
    assert said(old)["expires"] == "2026-11-30T00:54:20Z"  # it ends no later for that


def test_a_revoked_key_is_so_for_ever(world: World) -> None:
    (made,) = world.make(edits.revoke_key(ID, 1))
    assert (made.revoked, made.version) == (True, 2)
    for edit in (
        edits.set_key(ID, {"disabled": False}, None),
        edits.rotate_key(ID, hash_of("wb-l"), 0, None),
        edits.revoke_key(ID, None),
    ):
        with pytest.raises(Conflict, match="revoked"):
            world.make(edit)


LONG = {f"t{number}": "x" * 200 for number in range(16)}
DEEP = functools.reduce(lambda inner, _: [inner], range(900), [])  # type: ignore[arg-type, return-value]
MANY = {f"p{number}": {"concurrency": 1} for number in range(200)}


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        (edits.create_tenant({"name": "globex"}), Conflict, "already"),
        (edits.create_tenant({"name": "acme"}), Conflict, "already"),
        (edits.create_tenant({}), InvalidRequest, "name"),
        (edits.create_tenant({"name": "x", "keys": []}), InvalidRequest, "keys cannot be set here"),
        (edits.create_tenant({"name": "x", "capture": None}), InvalidRequest, "capture cannot be set here"),
        (edits.create_tenant({"name": "x", "share": "1"}), InvalidRequest, "share: must be a whole number"),
        (
            edits.create_tenant({"name": "x", "sahre": 1}),
            InvalidRequest,
            "sahre: is no key here; did you mean share?",
        ),
        (edits.create_tenant({"name": "X"}), InvalidRequest, "name: must be a name: lower-case letters"),
        (edits.create_tenant({"name": "x", "projects": "web"}), InvalidRequest, "projects: must be a list"),
        (
            edits.create_tenant({"name": "x", "tags": {"cost_center": 1001}, "hold": "some"}),
            InvalidRequest,
            'hold: must be one of expected, worst; tags.cost_center: must be a string; put it in quotes: "1001"',
        ),
        (
            edits.create_tenant({"name": "x", "limits": {"budgets": [{"usd": "1", "per": DEEP}]}}),
            InvalidRequest,
            "limits.budgets[0].per: must be one of day, hour, month",
        ),
        (edits.create_tenant({"name": "x", "model_limits": {"m9": {}}}), InvalidRequest, "no model m9"),
        (
            edits.create_tenant({"name": "x", "projects": list(MANY), "project_limits": MANY}),
            InvalidRequest,
            "longer",
        ),
        (edits.set_tenant("acme", {}, None), Conflict, "configuration file"),
        (edits.set_tenant("nobody", {}, None), NotFound, "no tenant"),
        (edits.set_tenant("globex", {"name": "other"}, None), InvalidRequest, "keeps its name"),
        (edits.set_tenant("globex", {"share": 2}, 7), VersionDiffers, "version 1 by now"),
        (edits.create_key({}, hash_of("wb-x")), InvalidRequest, "tenant"),
        (edits.create_key({"tenant": "nobody"}, hash_of("wb-x")), InvalidRequest, "no tenant nobody"),
        (edits.create_key({"tenant": "acme", "replaces": "x"}, hash_of("wb-x")), InvalidRequest, "replaces"),
        (
            edits.create_key({"tenant": "acme", "expires": "2026-01-01"}, hash_of("wb-x")),
            InvalidRequest,
            "past",
        ),
        (edits.create_key({"tenant": "acme", "expires": "soon"}, hash_of("wb-x")), InvalidRequest, "no time"),
        (
            edits.create_key({"tenant": "acme", "project": "x"}, hash_of("wb-x")),
            InvalidRequest,
            "project: there is no project x",
        ),
        (edits.set_key(FILE_KEY, {}, None), Conflict, "configuration file"),
        (edits.set_key("0" * 12, {}, None), NotFound, "no key"),
        (edits.set_key(ID, {"tenant": "acme"}, None), InvalidRequest, "keeps its tenant"),
        (edits.set_key(ID, {"hash": "x"}, None), InvalidRequest, "hash"),
        (edits.set_key(ID, {"name": "l"}, 2), VersionDiffers, "version 1 by now"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_why(
    world: World, edit: Edit, error: type[GatewayError], words: str
) -> None:
    before = dict(world.copy.texts)
    with pytest.raises(error) as caught:
        world.make(edit)
    assert words in caught.value.message
    assert world.copy.texts == before


def test_an_entry_that_cannot_be_read_cannot_be_changed(world: World) -> None:
    for kind, name in (("tenant", "globex"), ("key", ID)):
        entry = world.copy.get(kind, name)  # type: ignore[arg-type]
        assert entry is not None
        later = msgspec.structs.replace(entry, data=msgspec.Raw(b'{"from":"later"}'), version=9)
        world.copy.take([later])
    for edit in (edits.set_tenant("globex", {}, None), edits.revoke_key(ID, None)):
        with pytest.raises(NotFound):
            world.make(edit)


def test_what_is_shown_is_never_a_key_or_its_hash(world: World) -> None:
    tenant = world.compiled.tenant("globex")
    known = world.compiled.known_key(ID)
    assert tenant is not None
    assert known is not None
    one = shown.tenant(tenant, world.compiled, world.copy.get("tenant", "globex"))
    key = shown.key(ID, known, world.compiled, world.copy, NOW_NS)
    assert (one["source"], one["version"], one["keys"], one["disabled"]) == ("directory", 1, 1, False)
    assert (one["changed"], key.state, key.version, key.source) == (
        "2026-11-30T00:53:20Z",
        "active",
        1,
        "directory",
    )
    assert hash_of("wb-k") not in msgspec.json.encode([one, key]).decode()
    of_file = world.compiled.known_key(FILE_KEY)
    acme = world.compiled.tenant("acme")
    assert of_file is not None
    assert acme is not None
    key = shown.key(FILE_KEY, of_file, world.compiled, world.copy, NOW_NS)
    assert (key.source, key.version, key.changed, key.replaces) == ("file", None, None, None)
    assert shown.tenant(acme, world.compiled, None)["version"] is None
    world.make(edits.revoke_key(ID, None))
    known = world.compiled.known_key(ID)
    assert known is not None
    assert shown.key(ID, known, world.compiled, world.copy, NOW_NS).state == "revoked"
