"""Scrapes a gateway ten times a second from a thread, whatever happens to it meanwhile."""

import http.client
import threading
import time

from tests.oracle.exposition import Watch

INTERVAL_S = 0.1
ANSWER_S_MAX = 1.0
"""A connection may wait in the backlog of a worker that is dead; the next one goes to another."""


class Scraper:
    """Feeds a watch. failed: scrapes that got no answer; refused: statuses of answers other than 200."""

    def __init__(self, port: int, key: str) -> None:
        self.watch = Watch()
        self.failed = 0
        self.refused: list[int] = []
        self._port = port
        self._key = key
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * ANSWER_S_MAX + INTERVAL_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            try:
                text = self._scrape()
            except (OSError, http.client.HTTPException):
                self.failed += 1
            else:
                if text is not None:
                    self.watch.look(text)

    def _scrape(self) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S_MAX)
        try:
            connection.request("GET", "/metrics", headers={"authorization": f"Bearer {self._key}"})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            self.refused.append(answer.status)
            return None
        return body.decode()
