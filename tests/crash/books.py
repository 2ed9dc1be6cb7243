"""The books of a bed: all that the judge has to compare, kept up to date while faults befall the gateway."""

import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from tests.oracle import counters, csvfile, exposition, join, ledger
from tests.oracle.exposition import Watch
from tests.oracle.faults import Fault, Kind
from tests.oracle.follow import Follower
from tests.oracle.journal import Writer
from tests.oracle.ledger import Ledger
from tests.oracle.logs import Backends, Clients
from tests.oracle.resp import Connection, RespError
from tests.support.gateway import ROOT, Gateway, eventually
from tests.support.processes import is_alive

LOOK_S = 0.2
SETTLE_POLL_S = 0.05
SCRAPE_S = 30.0
DAY_S = 86_400
LATE_S_MAX = 1.0
"""What a busy machine may need to come round to a sync that is due."""


class Books:
    """A bed's logs, journals, store and counters. excused: ids of calls that a disk, and nobody else, has lost.

    unsynced_s_max: between two syncs of a journal.

    A look compares store and counters with the journals, five times a second, from a thread: none may be above.
    `still` keeps that off while journals are changed from outside.
    """

    def __init__(
        self,
        front: Gateway,
        store_url: str,
        clients: pathlib.Path,
        backends: pathlib.Path,
        unsynced_s_max: float,
    ) -> None:
        self.clients = Clients(clients)
        self.backends = Backends(backends)
        self.excused: set[str] = set()
        self.flips = 0  # bytes that a disk has made others
        self.looks = 0
        self.found: list[Fault] = []  # by looks, and what harm-doers have to say
        self._told: set[Fault] = set()
        self._unsynced_s_max = unsynced_s_max + LATE_S_MAX
        self._front = front
        self._store_url = store_url
        self._journals = front.state_dir / "journal"
        self._follower = Follower(self._journals)
        self._watch = Watch()
        self._lock = threading.RLock()
        self._stopping = threading.Event()

    def update(self) -> None:
        """Read what has come since."""
        with self._lock:
            self._follower.update()
            self.backends.update()
            self.clients.update()

    def pids(self) -> list[int]:
        """Of writers that have written no end."""
        with self._lock:
            self._follower.update()
            return [w.lines[0]["pid"] for w in self._follower.writers if w.lines and not w.closed]

    def writers(self) -> list[Writer]:
        with self._lock:
            self._follower.update()
            return list(self._follower.writers)

    # The looks

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look_on, name="looks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(10)

    @contextlib.contextmanager
    def still(self, *, counters_restart: bool) -> Iterator[None]:
        """No look while this lasts; then all is read anew. counters_restart: they may be lower after it."""
        with self._lock:
            yield
            self._follower = Follower(self._journals)
            if counters_restart:
                self.found += self._watch.faults
                self._watch = Watch()

    def _look_on(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        """What is read first may only be behind what is read after it."""
        follower = self._follower
        text, held = self._scrape(), self._held()
        with self._lock:
            if self._follower is not follower:
                return  # what was read is of journals that are others now
            follower.update()
            if held is not None:
                self.found += ledger.above(follower.ledger, held)
            if text is not None:
                self.found += follower.ceiling.above(self._watch.look(text))
            self.looks += 1

    def _held(self) -> Ledger | None:
        """What the store holds; None: it does not answer."""
        try:
            with Connection(self._store_url, answer_s_max=1.0) as store:
                return ledger.read(store)
        except (OSError, RespError):
            return None

    def _scrape(self) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._front.port, timeout=1.0)
        try:
            connection.request(
                "GET", "/metrics", headers={"authorization": f"Bearer {self._front.keys['acme']}"}
            )
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    # What a disk has lost

    def excuse(self, before: list[Writer], why: str, *, recent_ns: int | None = None) -> None:
        """Lines that were there before and are not any more, or are others: their calls are excused.

        recent_ns: none of them may be older than a sync's interval, and what this machine needs to come round to it.
        """
        after = {writer.name: writer for writer in self.writers()}
        for writer in before:
            kept = after.get(writer.name, Writer(writer.name)).leaves
            whole = next(
                (n for n, (a, b) in enumerate(zip(writer.leaves, kept, strict=False)) if a != b), len(kept)
            )
            gone = writer.lines[whole:]
            if writer.name in after:
                gone = gone + after[writer.name].lines[whole:]
            self.excused |= {
                line[name] for line in gone for name in ("request_id", "call_id") if line.get(name)
            }
            for line in gone:
                if recent_ns is not None and recent_ns - line["at_ns"] > self._unsynced_s_max * 1e9:
                    self._say(
                        writer.name,
                        f"{why}: line {line['seq']} was {(recent_ns - line['at_ns']) / 1e9:.2f} s old",
                    )

    def _say(self, where: str, what: str) -> None:
        self.found.append(Fault(Kind.NOT_COMPLETED, where, what))

    # The judgement

    def settle(self, within_s: float) -> list[Fault]:
        """Wait until nothing is wrong any more, with no call under way. returns: what still is, and what looks found.

        What was told once is not told again.
        """
        deadline_s = time.monotonic() + within_s
        while not self._is_quiet() and time.monotonic() < deadline_s:
            time.sleep(SETTLE_POLL_S)
        while (faults := self._new_faults()) and time.monotonic() < deadline_s:
            time.sleep(10 * SETTLE_POLL_S)
        with self._lock:
            faults += self.found + self._watch.faults
            self.found, self._watch.faults = [], []
        self._told.update(faults)
        return faults

    def _new_faults(self) -> list[Fault]:
        return [fault for fault in self.faults() if fault not in self._told]

    def _is_quiet(self) -> bool:
        """Does store and journals' comparison, which is quick, find nothing?"""
        with self._lock:
            self._follower.update()
            return not self._follower.open_calls() and not self._unclosed() and not self._differences()

    def _unclosed(self) -> list[Writer]:
        return [
            writer
            for writer in self._follower.writers
            if not writer.closed and not (writer.lines and is_alive(writer.lines[0]["pid"]))
        ]

    def _differences(self) -> list[Fault]:
        try:
            with Connection(self._store_url) as store:
                journalled = self._follower.ledger
                tenants = {name.partition(" ")[0] for name in journalled.marks}
                return ledger.check(journalled, ledger.read(store)) + ledger.unready(store, tenants)
        except (OSError, RespError) as error:
            return [Fault(Kind.LEDGER, "store", f"does not answer: {error}")]

    def difference_pusd(self) -> int:
        """How far money is apart in store and journals."""
        with self._lock, Connection(self._store_url) as store:
            self._follower.update()
            return ledger.difference_pusd(self._follower.ledger, ledger.read(store))

    def faults(self) -> list[Fault]:
        """All that is wrong now, with no call under way."""
        self.update()
        writers = self.writers()
        judged = [fault for writer in writers for fault in writer.faults]
        judged += join.check(list(self.clients.entries.values()), self.backends.entries, writers)
        faults = [fault for fault in judged if fault.where not in self.excused]
        faults += [
            Fault(Kind.CHAIN, w.name, "its writer is dead, and it has no end") for w in self._unclosed()
        ]
        with self._lock:
            return faults + self._differences()

    def judge_at_the_end(self, directory: pathlib.Path) -> list[Fault]:
        """The last scrape and the exports, from store and journals, of a gateway that still runs; then it is ended."""
        text = eventually(self._scrape, within_s=SCRAPE_S)  # the one that is asked may only be starting
        faults = counters.check(self.writers(), exposition.parse(text))
        with self._lock:
            journalled = self._follower.ledger
        exports = self._exports(directory)
        faults += [fault for path in exports for fault in csvfile.check(path, journalled)]
        if len({path.read_bytes() for path in exports}) != 1:
            faults.append(Fault(Kind.EXPORT, "store.csv", "other bytes than journals.csv"))
        self._stopping.set()
        if (code := self._front.stop()) != 0:
            faults.append(Fault(Kind.REPLY, "serve", f"ended with {code}"))
        faults += self._new_faults()
        faults += [Fault(Kind.CHAIN, w.name, "not closed") for w in self.writers() if not w.closed]
        return faults + self._verified()

    def _verified(self) -> list[Fault]:
        """The product's own word on what it has been through: whole, unless a disk has flipped a byte of it."""
        words = ["audit", "verify", str(self._front.state_dir)]
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode in ((0, 1, 4) if self.flips else (0,)):
            return []
        return [Fault(Kind.CHAIN, "audit verify", f"{done.returncode}: {done.stdout}{done.stderr}")]

    def _exports(self, directory: pathlib.Path) -> list[pathlib.Path]:
        """What `weighbridge export` writes from the store, and from the journals alone."""
        made = directory / "store.csv", directory / "journals.csv"
        config = json.loads(self._front.config_file.read_text())
        del config["redis"]
        alone = directory / "without-store.yaml"
        alone.write_text(json.dumps(config))
        days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() + shift)) for shift in (-DAY_S, 2 * DAY_S)]
        for path, config_file in zip(made, (self._front.config_file, alone), strict=True):
            words = ["export", "-c", str(config_file), "--from", days[0], "--to", days[1], "--out", str(path)]
            subprocess.run(
                [sys.executable, "-m", "gateway.cli", *words], cwd=ROOT, check=True, capture_output=True
            )
        return list(made)
