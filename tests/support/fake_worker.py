"""A worker that takes no calls: it speaks the control protocol, has a journal and a page, and answers
each connection with one line, "<index> <pid> <told>": how often it was told of a mark that fell behind.
Started by a supervisor under test in place of the real one.

How it behaves is its first argument:

    serve       as a worker does
    stubborn    as `serve`, but SIGTERM does not end it
    behind      as `serve`, and says `behind` at each connection
    starting    hears nothing yet, and will not for long
    broken      ends at once with status 1
    babble      says what is no message, and then nothing
"""

import argparse
import json
import os
import pathlib
import random
import selectors
import signal
import socket
import sys

from gateway.processes.control import Behind, Decoder, Ready, encode
from tests.support import lines, writers


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    for name in ("--config-fd", "--socket-fd", "--control-fd", "--index", "--workers"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--ops-fd", type=int)
    parser.add_argument("--mirror-fd", type=int)
    args = parser.parse_args()
    if args.behaviour == "broken":
        return 1
    if args.behaviour == "starting":
        signal.pause()
    stopping: list[int] = []
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None if args.behaviour == "stubborn" else stopping.append(1))
    with os.fdopen(args.config_fd) as file:
        config = json.load(file)
    line = socket.socket(fileno=args.control_fd)
    if args.behaviour == "babble":
        line.sendall(b"what?\n")
    worker = writers.Worker(pathlib.Path(config["state_dir"]), random.Random(os.urandom(8)))
    line.sendall(encode(Ready(worker.writer)))
    serve(args, line, wake, stopping)
    worker.write(lambda seq, prev: lines.stop(seq, prev))
    return 0


def serve(args: argparse.Namespace, line: socket.socket, wake: socket.socket, stopping: list[int]) -> None:
    decoder, told = Decoder(), 0
    with selectors.DefaultSelector() as selector:
        for fd in filter(None, (args.socket_fd, args.ops_fd)):
            selector.register(socket.socket(fileno=fd), selectors.EVENT_READ)
        selector.register(line, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while not stopping:
            for key, _ in selector.select():
                if key.fileobj is wake:
                    wake.recv(64)
                elif key.fileobj is line:
                    data = line.recv(64)
                    messages = decoder.feed(data)
                    if not data:
                        return
                    told += sum(isinstance(message, Behind) for message in messages)
                else:
                    connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    with connection:
                        connection.sendall(f"{args.index} {os.getpid()} {told}\n".encode())
                    if args.behaviour == "behind":
                        line.sendall(encode(Behind()))


if __name__ == "__main__":
    sys.exit(main())
