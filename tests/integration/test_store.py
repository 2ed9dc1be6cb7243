"""The store's script and client against real servers of every kind, with the Python model as oracle."""

import asyncio
import contextlib
import io
import itertools
import json
import pathlib
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from metering.export import export
from metering.ledger import ledger, store
from metering.ledger.epochs import Meta, Writer
from metering.ledger.folder import Folder
from metering.ledger.ledger import RANGE_MAX, START, Balances, Batch, Done, Gap, Mark, Posted, Refused, Reply
from metering.ledger.register import raise_floor
from metering.ledger.store import Store, StoreUnavailable
from metering.units import NS_PER_HOUR
from tests.support import lines, stores
from tests.support.certificates import Authority
from tests.support.ledgers import folded, is_above, random_directory
from tests.support.ports import free_port
from tests.support.stores import Running

pytestmark = pytest.mark.integration

HOUR = "2026092114"
FIELD = "web|llama|inf2|calls"
M3, M5, M8 = Mark(3, "3" * 16), Mark(5, "5" * 16), Mark(8, "8" * 16)


KINDS = {
    "valkey": lambda directory: stores.single(stores.valkey_binary(), directory),
    "valkey cluster, least user": lambda directory: stores.cluster(
        stores.valkey_binary(), directory, user=True
    ),
    "redis, TLS, least user": lambda directory: stores.single(
        stores.redis_binary(), directory, user=True, authority=Authority(directory)
    ),
    "redis cluster": lambda directory: stores.cluster(stores.redis_binary(), directory),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.debian if "redis" in kind else ()) for kind in KINDS],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if "redis" in request.param and stores.redis_binary() is None:
        pytest.skip("no redis-server 7")
    with KINDS[request.param](tmp_path_factory.mktemp("store")) as running, running:
        yield running


@pytest.fixture
def valkey(server: Running) -> Running:
    server.everywhere("FLUSHALL")
    return server


def run(server: Running, scenario: Callable[[Store], Awaitable[None]]) -> None:
    async def with_store() -> None:
        async with Store(server.url) as client:
            await scenario(client)

    asyncio.run(with_store())


def post(server: Running, *batches: Batch) -> list[Reply]:
    async def scenario() -> list[Reply]:
        async with Store(server.url) as client:
            return await client.post(batches)

    return asyncio.run(scenario())


def batch_of(prev: Mark, last: Mark, sums: dict[tuple[str, str], int], *, tenant: str = "acme") -> Batch:
    return Batch(tenant=tenant, writer="w", prev=prev, last=last, sums=sums)


def held(valkey: Running) -> Balances:
    """What the store has, as the model would hold it."""
    balances = Balances()
    for key in valkey.ask("KEYS", "*"):
        flat = valkey.ask("HGETALL", key)
        tenant = key.partition("{")[2].partition("}")[0]
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if key.endswith(":m"):
                balances.marks[tenant, name] = value
            elif key.endswith(":meta"):
                balances.floors[tenant] = value
            elif key[-13:-10] == ":w:":
                balances.by_writer[tenant, key[-10:], name] = value
            elif ":b:" in key:
                balances.spent[tenant, key.rpartition(":")[2], name] = value
            else:
                balances.values[tenant, key[-10:], name] = value
    return balances


def same(valkey: Running, balances: Balances) -> bool:
    now = held(valkey)
    return vars(now) == vars(balances)


def test_anchors_are_kept_and_disturb_nothing(server: Running, valkey: Running) -> None:
    async def scenario(store: Store) -> None:
        await store.put_anchors({})
        await store.put_anchors({"w1": "one", "w2": "two"})
        await store.put_anchors({"w2": "three"})
        assert await store.anchors() == {"w1": "one", "w2": "three"}
        valkey.ask("DEL", "wb:1:anchors")
        valkey.ask("SET", "wb:1:anchors", "of another type")
        await store.put_anchors({"w1": "one"})
        assert valkey.ask("GET", "wb:1:anchors") == "of another type"

    run(server, scenario)


def test_keys_are_those_of_the_contract(server: Running, valkey: Running) -> None:
    assert post(server, batch_of(START, M3, {(HOUR, FIELD): 2})) == [Posted()]
    assert valkey.ask("HGETALL", "wb:1:{acme}:m") == ["w", f"3:{'3' * 16}"]
    assert valkey.ask("HGETALL", f"wb:1:{{acme}}:h:{HOUR}") == [FIELD, "2"]
    assert valkey.ask("HGETALL", f"wb:1:{{acme}}:w:{HOUR}") == [f"w|{FIELD.rpartition('|')[2]}", "2"]
    hours = [f"wb:1:{{acme}}:{kind}:{HOUR}" for kind in "hw"]
    assert sorted(valkey.ask("KEYS", "*")) == sorted([*hours, "wb:1:{acme}:m"])


@pytest.mark.parametrize(
    ("mark", "sent", "reply"),
    [
        (M3, batch_of(M3, M5, {(HOUR, FIELD): 2}), Posted()),
        (M5, batch_of(M3, M5, {(HOUR, FIELD): 2}), Done(M5)),
        (M8, batch_of(M3, M5, {(HOUR, FIELD): 2}), Done(M8)),
        (None, batch_of(M3, M5, {(HOUR, FIELD): 2}), Gap(START)),
        (Mark(3, "f" * 16), batch_of(M3, M5, {(HOUR, FIELD): 2}), Gap(Mark(3, "f" * 16))),
        (M5, ledger.probe("acme", "w", M5), Done(M5)),
        (None, ledger.probe("acme", "w", START), Done(START)),
        (M3, ledger.probe("acme", "w", M5), Gap(M3)),
    ],
)
def test_what_a_batch_is_answered(
    server: Running, valkey: Running, mark: Mark | None, sent: Batch, reply: Reply
) -> None:
    if mark is not None:
        valkey.ask("HSET", "wb:1:{acme}:m", "w", str(mark))
    assert post(server, sent) == [reply]
    assert valkey.ask("HGET", "wb:1:{acme}:m", "w") == (
        str(sent.last) if reply == Posted() else str(mark) if mark else None
    )


def test_seqs_are_compared_as_whole_numbers(server: Running, valkey: Running) -> None:
    """2^53 and 2^53 + 1 are one Lua number, "9" is above "10" as text."""
    big, bigger = Mark(2**53, "a" * 16), Mark(2**53 + 1, "b" * 16)
    valkey.ask("HSET", "wb:1:{acme}:m", "w", str(big))
    assert post(server, batch_of(big, bigger, {(HOUR, FIELD): 1})) == [Posted()]
    valkey.ask("HSET", "wb:1:{acme}:m", "w", str(Mark(9, "9" * 16)))
    assert post(server, batch_of(Mark(9, "9" * 16), Mark(10, "0" * 16), {(HOUR, FIELD): 1})) == [Posted()]


@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("wb:1:{acme}:m", "wb:1:{acme}:m"),
        ("wb:1:{acme}:meta", "wb:1:{acme}:meta"),
        (f"wb:1:{{acme}}:h:{HOUR}", f"wb:1:{{acme}}:h:{HOUR}"),
    ],
)
def test_a_key_of_another_type_stops_the_batch(
    server: Running, valkey: Running, key: str, where: str
) -> None:
    valkey.ask("SET", key, "x")
    sent = batch_of(START, M3, {("2026092113", FIELD): 1, (HOUR, FIELD): 1})
    other = batch_of(START, M3, {(HOUR, FIELD): 1}, tenant="globex")
    assert post(server, sent, other) == [Refused("TYPE", where), Posted()]
    assert sorted(valkey.ask("KEYS", "wb:1:{acme}*")) == [key]

    async def marks(client: Store) -> None:
        found = await client.marks({"acme": ["w"], "globex": ["w"]})
        refused = Refused("TYPE", "wb:1:{acme}:m") if key.endswith(":m") else START
        assert found == {("acme", "w"): refused, ("globex", "w"): M3}

    run(server, marks)


@pytest.mark.parametrize(
    "mark", ["", "x", "3", "03:" + "3" * 16, "3:" + "3" * 15, "3:" + "G" * 16, "-3:" + "3" * 16]
)
def test_what_is_no_mark_stops_the_batch(server: Running, valkey: Running, mark: str) -> None:
    valkey.ask("HSET", "wb:1:{acme}:m", "w", mark)
    assert post(server, batch_of(START, M3, {(HOUR, FIELD): 1})) == [Refused("FORM", "w")]
    assert valkey.ask("KEYS", "*") == ["wb:1:{acme}:m"]

    async def marks(client: Store) -> None:
        assert await client.marks({"acme": ["w"]}) == {("acme", "w"): Refused("FORM", "w")}

    run(server, marks)


VALUES = [0, 1, 10**10 - 1, 10**10, 2**53, RANGE_MAX - 1, RANGE_MAX, RANGE_MAX + 1, 10**19, 10**30]
AMOUNTS = [1, 2, 10**10 - 1, 10**10, 2**53 + 1, RANGE_MAX, RANGE_MAX + 1, 10**19]


def test_range_and_sum_are_exact(server: Running, valkey: Running) -> None:
    """All around 2^53, the halves' border and the largest value; all of a batch is taken, or nothing."""
    balances = Balances()
    sent = []
    for number, (value, amount, sign) in enumerate(itertools.product(VALUES, AMOUNTS, [1, -1])):
        tenant = f"t{number}"
        balances.values[tenant, HOUR, FIELD] = str(sign * value)
        valkey.ask("HSET", f"wb:1:{{{tenant}}}:h:{HOUR}", FIELD, str(sign * value))
        sums = {(HOUR, "web|llama|inf2|prompt_tokens"): 5, (HOUR, FIELD): amount}
        sent.append(batch_of(START, M3, sums, tenant=tenant))
    assert post(server, *sent) == [balances.post(batch) for batch in sent]
    assert same(valkey, balances)


@pytest.mark.parametrize("value", ["", "1.5", "1e3", "007", "-0", "+1", " 1", "1 ", "0x1", "x", "٣"])
def test_what_is_no_integer_stops_the_batch(server: Running, valkey: Running, value: str) -> None:
    valkey.ask("HSET", f"wb:1:{{acme}}:h:{HOUR}", FIELD, value)
    sent = batch_of(START, M3, {(HOUR, "web|llama|inf2|prompt_tokens"): 5, (HOUR, FIELD): 1})
    assert post(server, sent) == [Refused("FORM", FIELD)]
    assert valkey.ask("HGETALL", f"wb:1:{{acme}}:h:{HOUR}") == [FIELD, value]


@pytest.mark.parametrize("seed", range(20))
def test_the_script_and_the_model_give_the_same_answers(server: Running, valkey: Running, seed: int) -> None:
    """Batches of three journals, cut anywhere, repeated, in no order; and what a store may hold by accident."""
    rng, balances = random.Random(seed), Balances()
    postings: dict[tuple[str, str], list[ledger.Posting]] = {}
    for writer in ("w1", "w2", "w3"):
        for line, seq, leaf in random_directory(rng, writer, 25).lines:
            if isinstance(line, ledger.CallRecord):
                postings.setdefault((line.tenant, writer), []).append(ledger.posting(line, seq, leaf))

    def sent() -> Batch:
        (tenant, writer), records = rng.choice(list(postings.items()))
        start = rng.randrange(len(records))
        end = rng.randrange(start, len(records)) + 1
        prev = records[start - 1].mark if start else START
        if rng.random() < 0.1:
            return ledger.probe(tenant, writer, records[start].mark)
        return ledger.batch(tenant, writer, prev, records[start:end])

    def accident() -> None:
        key = (rng.choice(["acme", "globex"]), "w1")
        value = rng.choice(["", "7", str(Mark(2, "f" * 16)), str(START)])
        balances.marks[key] = value
        valkey.ask("HSET", f"wb:1:{{{key[0]}}}:m", "w1", value)

    first = lines.AT_NS // NS_PER_HOUR

    def floor(tenant: str, hour: int) -> None:
        balances.floors[tenant] = "x" * 10 if rng.random() < 0.1 else ledger.hour_text(hour)
        valkey.ask("HSET", f"wb:1:{{{tenant}}}:meta", "floor", balances.floors[tenant])

    async def scenario(client: Store) -> None:
        for _ in range(150):
            batches = [sent() for _ in range(rng.randrange(1, 6))]
            assert await client.post(batches) == [balances.post(batch) for batch in batches]
            if rng.random() < 0.02:
                accident()
            if rng.random() < 0.02:
                floor(rng.choice(["globex", "initech"]), first + rng.randrange(4))

    run(server, scenario)
    assert same(valkey, balances)


def test_a_store_without_the_script_gets_it(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        await client.post([batch_of(START, M3, {(HOUR, FIELD): 2})])
        valkey.everywhere("SCRIPT", "FLUSH")
        sent = [
            batch_of(M3, M5, {(HOUR, FIELD): 2}),
            batch_of(START, M3, {(HOUR, FIELD): 2}, tenant="globex"),
        ]
        assert await client.post(sent) == [Posted(), Posted()]

    run(server, scenario)


def test_balances_of_some_hours(server: Running, valkey: Running) -> None:
    for hour in ("2026092113", "2026092114", "2026092115", "9999999999"):
        valkey.ask("HSET", f"wb:1:{{acme}}:h:{hour}", FIELD, hour[-2:])
    valkey.ask("SET", "wb:1:other", "x")

    async def scenario(client: Store) -> None:
        first = ledger.hour_number("2026092113")
        found = [balance async for balance in client.balances(range(first, first + 2))]
        assert sorted(found) == [("acme", first, {FIELD: "13"}), ("acme", first + 1, {FIELD: "14"})]

    run(server, scenario)


OPEN = Writer(host="h1", seen_ns=1, seq=7, state="open", epoch="e1")
CLOSED = Writer(host="h2", seen_ns=2, seq=9, state="closed", epoch="e1", hour=HOUR)


def test_epochs_are_renewed_by_one(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        assert await client.epoch() == ""
        assert await client.renew("", "e1") == "e1"
        assert await client.renew("", "e2") == "e1"  # somebody else was quicker
        assert await client.renew("e1", "e3") == "e3"
        assert await client.epoch() == "e3" == valkey.ask("GET", "wb:1:epoch")

    run(server, scenario)


def test_a_tenant_is_ready_in_the_epoch_that_it_is_in(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        assert await client.metas(["acme", "globex"]) == {"acme": Meta(), "globex": Meta()}
        await client.begin(["acme", "globex"], "e1")
        await client.set_ready(["acme"], "e0")
        assert await client.metas(["acme"]) == {"acme": Meta(epoch="e1")}
        await client.set_ready(["acme"], "e1")
        await client.begin(["acme"], "e1")  # again changes nothing
        assert await client.metas(["acme"]) == {"acme": Meta(epoch="e1", ready="e1")}
        await client.begin(["acme"], "e2")
        assert await client.metas(["acme", "globex"]) == {
            "acme": Meta(epoch="e2"),
            "globex": Meta(epoch="e1"),
        }
        valkey.ask("DEL", "wb:1:{acme}:meta")
        await client.set_ready(["acme"], "e2")  # what was lost meanwhile is not ready
        assert await client.metas(["acme"]) == {"acme": Meta()}
        valkey.ask("SET", "wb:1:{acme}:meta", "x")
        await client.begin(["acme", "globex"], "e3")
        assert await client.metas(["acme", "globex"]) == {"globex": Meta(epoch="e3")}

    run(server, scenario)


def test_the_list_of_writers(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        assert await client.writers() == {}
        await client.put_writers({"w1": OPEN, "w2": OPEN})
        await client.put_writers({"w2": CLOSED, "w3": CLOSED}, if_absent=True)
        assert await client.writers() == {"w1": OPEN, "w2": OPEN, "w3": CLOSED}
        assert json.loads(valkey.ask("HGET", "wb:1:writers", "w3")) == {
            "behind": [], "epoch": "e1", "host": "h2", "hour": HOUR, "seen_ns": 2, "seq": 9, "state": "closed",
        }  # fmt: skip

    run(server, scenario)


def test_a_floor_closes_hours_and_lets_marks_go(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        for tenant in ("acme", "globex"):
            for hour in ("2026092113", HOUR):
                valkey.ask("HSET", f"wb:1:{{{tenant}}}:h:{hour}", FIELD, "1")
                valkey.ask("HSET", f"wb:1:{{{tenant}}}:w:{hour}", "w1|calls", "1")
            for window in ("202609", "20260921", "2026092113", HOUR):
                valkey.ask("HSET", f"wb:1:{{{tenant}}}:b:{window}", "t", "1")
            valkey.ask("HSET", f"wb:1:{{{tenant}}}:m", "w1", str(M3), "w2", str(M3))
        await client.put_writers({"w1": OPEN, "w2": CLOSED})
        await raise_floor(client, ["acme"], HOUR)
        await raise_floor(client, ["acme"], "2026092113")  # it never falls
        assert (await client.metas(["acme"]))["acme"].floor == HOUR
        assert sorted(valkey.ask("KEYS", "wb:1:{*}:h:*")) == [
            f"wb:1:{{acme}}:h:{HOUR}", "wb:1:{globex}:h:2026092113", f"wb:1:{{globex}}:h:{HOUR}",
        ]  # fmt: skip
        assert valkey.ask("KEYS", "wb:1:{acme}:w:*") == [f"wb:1:{{acme}}:w:{HOUR}"]
        assert sorted(valkey.ask("KEYS", "wb:1:{acme}:b:*")) == [
            "wb:1:{acme}:b:202609", "wb:1:{acme}:b:20260921", f"wb:1:{{acme}}:b:{HOUR}"
        ]  # fmt: skip
        await raise_floor(client, ["acme", "globex"], "2026092200")
        assert valkey.ask("KEYS", "wb:1:{*}:h:*") == []
        assert sorted(valkey.ask("KEYS", "wb:1:{*}:b:*")) == [
            "wb:1:{acme}:b:202609",
            "wb:1:{globex}:b:202609",
        ]
        assert valkey.ask("HKEYS", "wb:1:{acme}:m") == ["w1", "w2"]  # the month is not over
        await raise_floor(client, ["acme", "globex"], "2026100100")
        assert valkey.ask("KEYS", "wb:1:{*}:b:*") == []
        assert valkey.ask("HKEYS", "wb:1:{acme}:m") == valkey.ask("HKEYS", "wb:1:writers") == ["w1"]

    run(server, scenario)


def test_all_of_a_tenant_is_deleted_and_nothing_else(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        for tenant in ("acme", "acme2"):
            await client.post([batch_of(START, M3, {(HOUR, FIELD): 2}, tenant=tenant)])
            await client.begin([tenant], "e1")
        assert await client.drop_tenant("acme") == 4
        assert await client.drop_tenant("acme") == 0
        assert sorted({key.split("}")[0] for key in valkey.ask("KEYS", "*")}) == ["wb:1:{acme2"]

    run(server, scenario)


def test_how_it_evicts(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        assert await client.eviction() == store.EVICTION_WANTED
        assert await client.post([]) == []
        assert await client.marks({}) == {}

    run(server, scenario)


def test_a_new_connection_is_counted(server: Running, valkey: Running) -> None:
    async def scenario(client: Store) -> None:
        assert client.connections == 0
        await client.ping()
        made = client.connections
        await client.ping()
        assert client.connections == made > 0
        for one in valkey.each:  # of a cluster: of one shard alone, each in turn
            one.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            while client.connections == made:
                with contextlib.suppress(StoreUnavailable):  # whether it is seen is a matter of time
                    await client.ping()
            made = client.connections

    run(server, scenario)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", "still loading its data"),
        (b"-READONLY You can't write against a read only replica.\r\n", "read-only"),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "out of memory"),
        (b"-NOPERM this user has no permissions\r\n", "not permitted"),
        (b"-NOAUTH Authentication required.\r\n", "wrong credentials"),
        (b"-ERR something\r\n", "refused the command"),
        (b"", "no answer in time"),
    ],
)
def test_why_it_is_unavailable(reply: bytes, reason: str) -> None:
    """A server that gives one answer to everything. The reason is a phrase with no address in it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(reply * data.count(b"*"))
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Store(f"redis://127.0.0.1:{port}", reply_timeout_s=0.2) as client:
            with pytest.raises(StoreUnavailable) as caught:
                await client.post([batch_of(START, M3, {(HOUR, FIELD): 1})])
            assert caught.value.reason == reason
            assert str(port) not in str(caught.value)
            if reason == "not permitted":  # as many who offer a managed store have it
                assert await client.eviction() is None

    asyncio.run(scenario())


@pytest.mark.debian
def test_a_certificate_of_nobody_known_is_refused(tmp_path: pathlib.Path) -> None:
    binary = stores.redis_binary()
    if binary is None:
        pytest.skip("no redis-server 7")

    async def scenario(url: str) -> None:
        async with Store(url) as client:
            with pytest.raises(StoreUnavailable, match="no connection"):
                await client.ping()

    with stores.single(binary, tmp_path, authority=Authority(tmp_path)) as running:
        asyncio.run(scenario(running.url.partition("?")[0]))


def test_nobody_there() -> None:
    port = free_port()

    async def scenario() -> None:
        async with Store(f"redis://127.0.0.1:{port}") as client:
            with pytest.raises(StoreUnavailable, match="no connection"):
                await client.ping()
            with pytest.raises(StoreUnavailable, match="no connection"):
                assert [balance async for balance in client.balances(range(10))]

    asyncio.run(scenario())


def test_a_url_of_no_store() -> None:
    with pytest.raises(ValueError, match="scheme"):
        Store("http://127.0.0.1:6379")


# The whole store against journals, and mutants of the script


@pytest.mark.parametrize("seed", range(5))
def test_losses_and_old_copies_are_healed(server: Running, valkey: Running, seed: int) -> None:
    """FLUSHALL; one tenant's keys deleted; all of them, or one tenant's, as they were once (DUMP, RESTORE)."""
    rng = random.Random(seed)
    directories = [random_directory(rng, f"w{index}", 30) for index in range(3)]
    limit = folded(directories)

    async def scenario(client: Store) -> None:
        early = [directory.copy() for directory in directories]
        for directory in early:
            del directory.lines[rng.randrange(1, 20) :]
        await Folder(client).fold(early)
        for pattern in ("*", "wb:1:{acme}*", "*", "wb:1:{globex}*"):
            copy = valkey.copy(pattern) if rng.random() < 0.7 else {}
            await Folder(client).fold(directories)
            valkey.put_back(pattern, copy)
            assert not is_above({key: int(v) for key, v in held(valkey).values.items()}, limit)
            assert await Folder(client).fold(directories) == 0
            assert {key: int(value) for key, value in held(valkey).values.items()} == limit

    run(server, scenario)


PREDECESSOR = """if mark ~= prev then
  return {'GAP', mark}
end
"""
ADDING = "    redis.call('HINCRBY', KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2])\n"


@pytest.mark.parametrize(
    ("part", "mutant"),
    [
        (PREDECESSOR, ""),  # takes what does not follow
        (ADDING, ""),  # moves the mark without the sums
        ("redis.call('HSET', KEYS[1], writer, last)", ""),  # adds without moving the mark
    ],
)
def test_the_laws_see_a_wrong_script(server: Running, valkey: Running, part: str, mutant: str) -> None:
    rng = random.Random(7)
    directories = [random_directory(rng, f"w{index}", 30) for index in range(2)]

    async def scenario(client: Store) -> None:
        assert part in client._script
        client._script = client._script.replace(part, mutant)
        early = [directory.copy() for directory in directories]
        for directory in early:
            del directory.lines[10:]
        for some in (early, directories):
            for directory in some:
                records = [
                    (line.tenant, ledger.posting(line, seq, leaf))
                    for line, seq, leaf in directory.lines
                    if isinstance(line, ledger.CallRecord)
                ]
                for tenant in {tenant for tenant, _ in records}:  # a folder that has not asked for the mark
                    postings = [posting for name, posting in records if name == tenant]
                    await client.post([ledger.batch(tenant, directory.writer, START, postings)] * 2)
        left = await Folder(client).fold(directories)
        assert left or {key: int(value) for key, value in held(valkey).values.items()} != folded(directories)

    run(server, scenario)


FLOOR = "open[i] = tonumber(digits) >= tonumber(string.sub(floor, 1, #digits))"
MARKING = "redis.call('HSET', KEYS[1], writer, last)\n"
CHECKING = "local highs, lows"


@pytest.mark.parametrize(
    ("part", "mutant"),
    [
        (FLOOR, "open[i] = true"),  # closed hours come back
        (CHECKING, MARKING + CHECKING),  # the mark moves before all is known to fit
    ],
)
def test_what_is_closed_or_refused_is_left_alone_by_the_right_script_only(
    server: Running, valkey: Running, part: str, mutant: str
) -> None:
    """A closed hour; a batch that is refused; the same once its cause is gone. With and without the mutant."""

    async def scenario(client: Store, balances: Balances) -> bool:
        server.everywhere("FLUSHALL")
        before, kept = ledger.hour_text(ledger.hour_number(HOUR) - 1), (HOUR, FIELD)
        sent = batch_of(START, M3, {(before, FIELD): 5, kept: RANGE_MAX})
        balances.floors["acme"], balances.values["acme", *kept] = HOUR, "1"
        valkey.ask("HSET", "wb:1:{acme}:meta", "floor", HOUR)
        valkey.ask("HSET", f"wb:1:{{acme}}:h:{HOUR}", FIELD, "1")
        as_modelled = await client.post([sent]) == [balances.post(sent)]
        balances.values["acme", *kept] = "0"
        valkey.ask("HSET", f"wb:1:{{acme}}:h:{HOUR}", FIELD, "0")
        as_modelled &= await client.post([sent]) == [balances.post(sent)]
        return as_modelled and same(valkey, balances)

    async def both(client: Store) -> None:
        assert await scenario(client, Balances())
        assert part in client._script
        client._script = client._script.replace(part, mutant)
        assert not await scenario(client, Balances())

    run(server, both)


@pytest.mark.parametrize("seed", range(5))
def test_both_exports_are_the_same_bytes(server: Running, valkey: Running, seed: int) -> None:
    rng = random.Random(seed)
    directories = [random_directory(rng, f"w{index}", 40) for index in range(3)]
    first = lines.AT_NS // NS_PER_HOUR
    valkey.ask("HSET", f"wb:1:{{acme}}:h:{ledger.hour_text(first)}", "|llama|inf2|a_later_unit", "5")

    def written(rows: list[export.Row]) -> str:
        out = io.StringIO()
        export.export_csv(rows, out)
        return out.getvalue()

    async def scenario(client: Store) -> None:
        await Folder(client).fold(directories)
        for hours in (
            range(first, first + 3),
            range(first, first + 1),
            range(first + 1, first + 2),
            range(first),
        ):
            from_store = written(await export.rows_from_store(client, hours))
            assert from_store == written(export.rows_from_journal(directories, hours))
        valkey.ask("HSET", f"wb:1:{{acme}}:h:{ledger.hour_text(first)}", "rubbish", "5")
        with pytest.raises(ValueError, match="no field of the ledger"):
            await export.rows_from_store(client, range(first, first + 1))

    run(server, scenario)


def test_usage_as_a_record_has_it_arrives(server: Running, valkey: Running) -> None:
    record = lines.call(project="web", cost_pusd=2**62 // 10**6, usage=lines.usage(10, 4, 7))
    at = ledger.mark(record.seq, lines.leaf_of(record))
    assert post(server, batch_of(START, at, ledger.postings(record))) == [Posted()]
    (hour,) = {hour for hour, _ in ledger.postings(record)}
    flat = valkey.ask("HGETALL", f"wb:1:{{acme}}:h:{hour}")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {
        field: str(amount) for (_, field), amount in ledger.postings(record).items()
    }
