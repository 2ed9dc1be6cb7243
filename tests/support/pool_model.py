"""What metering/data/pool.lua does, written a second time and from its description alone: deploy/reference/ledger.md.

State is plain dicts, messages and replies are tuples in the order of their fields. Nothing of ours is imported.
"""

from typing import Any

SILENT_MS = 20_000
SETTLE_MS = 20_000
CALL_MS = 150
ALL = "*"
FORGET_MS = 30_000
QUIET_MS = 3_000
RETURN_CALLS = 2
SPARE = ""

State = dict[str, Any]


def new_state(gen: str) -> State:
    return {
        "gen": gen, "version": 0, "members": {}, "tenants": {}, "last": {}, "missing": {}, "alone": False,
        "contended": False,
    }  # fmt: skip


class PoolModel:
    """One pool. `step` takes a message at a time of the store, and says what it answers and whom it wakes."""

    def __init__(self) -> None:
        self.state: State | None = None

    def flush(self) -> None:
        self.state = None

    def drop(self, member: str, now_ms: int) -> dict[str, Any]:
        """A supervisor says that a process is dead. returns: whom it wakes, with what."""
        state = self.state
        if state is None:
            return {}
        if state["members"].pop(member, None) is not None:
            state["version"] += 1
        state["missing"].pop(member, None)
        return self._order(state, now_ms, "")

    def step(self, message: tuple[Any, ...], now_ms: int) -> tuple[list[Any], dict[str, Any]]:
        (id_, gen, number, acked, slots, seen, holds, idle, version, lines, service, roster, leaving) = (
            message
        )
        state, called = self.state, False
        if state is None:
            state = self.state = new_state(f"{id_}:{number}")
            if gen == "":  # nobody knows whether it is the first one
                state["missing"][ALL] = now_ms + CALL_MS
                called = True
        members, tenants, missing = state["members"], state["tenants"], state["missing"]
        same = gen == state["gen"]
        mine = members.get(id_)
        if mine is not None and number <= mine["number"]:
            return self._reply(state, mine, version, who=False), {}
        for other in [
            one for one, facts in members.items() if facts["at"] < now_ms - SILENT_MS and one != id_
        ]:
            del members[other]
            state["version"] += 1
        if mine is None:
            mine = members[id_] = {
                "number": 0,
                "granted": seen if same else 0,
                "pend": [],
                "last": {},
                "lines": {},
            }
            state["version"] += 1
        missing.pop(id_, None)
        who = not same and gen != "" and not roster
        if who:
            missing["?" + id_] = now_ms + SETTLE_MS
        elif roster:
            missing.pop("?" + id_, None)
            for one in roster:
                if one not in members:
                    missing.setdefault(one, now_ms + SETTLE_MS)
        pend = mine["pend"]
        first = mine["granted"] - len(pend)
        confirmed = min(max((seen if same else 0) - first, 0), len(pend))
        for tenant, work, share in pend[:confirmed]:
            if tenant != SPARE:
                _charge(tenants, tenant, -work / share, now_ms)
        mine["pend"] = pend = pend[confirmed:]
        if same:  # a store that lost its last seconds knows less than it had given
            mine["granted"] = max(mine["granted"], seen)
        if acked == mine["number"]:
            mine["last"] = {}
        for tenant, base, now_is, share in service:
            before = mine["last"].get(tenant, base)
            mine["last"][tenant] = now_is
            _charge(tenants, tenant, (now_is - before) / share, now_ms)
        self._take_lines(state, mine, lines, now_ms)
        mine |= {"number": number, "at": now_ms, "holds": holds, "idle": idle, "slots": slots}
        mine["known"] = len(members)
        if leaving:
            del members[id_]
            state["version"] += 1
        wakes = self._order(state, now_ms, id_)
        if called:
            wakes[ALL] = ["", 0, [], 0, 0]
        return self._reply(state, mine, version, who=who), wakes

    def _take_lines(self, state: State, mine: dict[str, Any], lines: Any, now_ms: int) -> None:
        tenants = state["tenants"]
        waited: dict[str, int] = {}
        for facts in state["members"].values():
            for one, line in facts["lines"].items():
                waited[one] = max(line[0], waited.get(one, 0))
        mine["lines"] = {}
        for tenant, priority, share, waiting, age_ms, work, credit in lines:
            known = min(
                (_virtual(tenants, one) for one, its in waited.items() if its == priority), default=None
            )
            last = state["last"].get(priority)
            if known is None and last in tenants:
                known = tenants[last][0]
            if tenant not in waited and known is not None:
                floor = known - RETURN_CALLS * credit / share
                virtual = tenants[tenant][0] if tenant in tenants else floor
                tenants[tenant] = [max(virtual, floor), now_ms]
            pending = sum(one[0] == tenant for one in mine["pend"])
            if waiting > pending:
                mine["lines"][tenant] = [priority, share, waiting - pending, now_ms - age_ms, work]

    def _order(self, state: State, now_ms: int, speaker: str) -> dict[str, Any]:
        """Give what is free to those whose turn it is. returns: whom to wake."""
        members, missing = state["members"], state["missing"]
        for one in [one for one, until_ms in missing.items() if until_ms < now_ms]:
            del missing[one]
        wake = set()
        cap = min((one["slots"] for one in members.values()), default=0)
        free = cap - sum(self.held(one, now_ms) for one in members.values())
        was_alone, state["alone"] = state["alone"], len(members) == 1 and not missing
        if was_alone and not state["alone"]:
            wake |= set(members)
        while free > 0 and not missing:
            turn = self._turn(state)
            if turn is None:
                break
            tenant, member = turn
            mine = members[member]
            priority, share, _, _, work = line = mine["lines"][tenant]
            state["last"][priority] = tenant
            _charge(state["tenants"], tenant, work / share, now_ms)
            _grant(mine, [tenant, work, share])
            line[2] -= 1
            if line[2] == 0:
                del mine["lines"][tenant]
            free -= 1
            wake.add(member)
        if state["alone"]:
            for _ in range(free):
                _grant(next(iter(members.values())), [SPARE, 0, 1])
                wake |= set(members)
        state["contended"] = free < 0 or any(one["lines"] for one in members.values())
        for tenant in [one for one, (_, at) in state["tenants"].items() if at < now_ms - FORGET_MS]:
            if not any(tenant in one["lines"] for one in members.values()):
                del state["tenants"][tenant]
        if state["contended"]:
            for name, one in members.items():
                if one["idle"] > 0 and name != speaker:
                    one["idle"] = 0
                    wake.add(name)
        return {name: self._told(state, members[name]) for name in sorted(wake - {speaker})}

    def held(self, one: dict[str, Any], now_ms: int) -> int:
        """The slots that are a member's; of one that is quiet, at least those that it will take when it is away."""
        held = one["holds"] + len(one["pend"])
        return held if one["at"] >= now_ms - QUIET_MS else max(held, -(-one["slots"] // one["known"]))

    def _turn(self, state: State) -> tuple[str, str] | None:
        """Whose turn it is: the tenant, and the member with its oldest call."""
        tenants = state["tenants"]
        found = [
            (-line[0], tenants[tenant][0] if tenant in tenants else 0, line[3], tenant, member)
            for member, one in state["members"].items()
            for tenant, line in one["lines"].items()
        ]
        return min(found)[3:] if found else None

    def _told(self, state: State, mine: dict[str, Any]) -> list[Any]:
        """What a wake says: gen, granted, tenants of what is not seen, contended, alone."""
        unseen = [one[0] for one in mine["pend"]]
        return [state["gen"], mine["granted"], unseen, int(state["contended"]), int(state["alone"])]

    def _reply(self, state: State, mine: dict[str, Any], version: int, *, who: bool) -> list[Any]:
        """As a wake; then number, whether to say the roster, whether settling, and the members if they have changed."""
        members = sorted(state["members"]) if version != state["version"] else []
        return [
            *self._told(state, mine),
            mine["number"],
            int(who),
            int(bool(state["missing"])),
            state["version"],
            members,
        ]


def _charge(tenants: dict[str, list[Any]], tenant: str, virtual: float, now_ms: int) -> None:
    before = tenants[tenant][0] if tenant in tenants else 0
    tenants[tenant] = [before + virtual, now_ms]


def _virtual(tenants: dict[str, list[Any]], tenant: str) -> float:
    return tenants[tenant][0] if tenant in tenants else 0


def _grant(mine: dict[str, Any], what: list[Any]) -> None:
    mine["granted"] += 1
    mine["pend"].append(what)
