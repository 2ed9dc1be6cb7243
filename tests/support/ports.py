"""Ports to listen at, for programs that must be told one."""

import contextlib
import os
import pathlib
import random
import socket

_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_RUNS = 16
_EPHEMERAL = 32_768
"""Where Linux begins, unless it says otherwise."""
BUS = 10_000
"""So far above its own is the port by which a Cluster's node talks to the others."""


def free_ports(count: int, *, also: int = 0) -> list[int]:
    """Ports that nobody has, nor will have by chance; also: nor has anyone the port that is so much higher.

    One that the kernel gives (port 0) may be given again, to an outgoing connection, before the program is there,
    or while it is started anew: these are below all that it gives. Two runs of the tests at once, whose process ids
    are seldom far apart, choose among different ones.
    """
    first_given = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _EPHEMERAL
    ports = range(_LOWEST + os.getpid() % _RUNS, first_given - also, _RUNS)
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(ports, len(ports)):
            if len(found) == count:
                break
            with contextlib.suppress(OSError):
                for each in {port, port + also}:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
                found.append(port)
    assert len(found) == count
    return found


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
