"""`weighbridge demo`: a simulated fleet, the gateway before it, three tenants, some calls and what they cost.

The servers are child processes (`weighbridge simulate`), the gateway is run by this one. The data stays
in the state directory: a second start finds its keys and its ledger again.

    <state_dir>/demo.yaml                the configuration, as `weighbridge check` reads it
    <state_dir>/api-key, api-key.<tenant>    the key of the first tenant, of the others, and of those who audit
    <state_dir>/simulators.log           what the servers say
"""

import argparse
import contextlib
import datetime
import http.client
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from gateway.api.auth import hash_of
from gateway.commands import demo_fleet, demo_tour
from gateway.commands.demo_fleet import (
    LIMITED,
    LIMITED_PER_MINUTE,
    MODEL,
    SERVED_MODEL,
    SERVERS,
    STAFF,
    TENANTS,
    Server,
)
from gateway.commands.demo_tour import Client, TourError
from gateway.commands.keys import KEY_FILE, kept_key
from gateway.configuration import config_load
from gateway.configuration.config import Config, host_and_port
from gateway.configuration.config_load import Flags, Place
from gateway.processes import supervisor
from gateway.processes.sockets import Address, Port
from gateway.processes.supervisor import EXIT_FAILED, EXIT_TAKEN, StartError
from metering.ledger import embedded
from metering.ledger.store import StoreUnavailable

CONFIG_FILE = "demo.yaml"
SIMULATORS_LOG = "simulators.log"
STOP_S = 5.0
FAULT_TIMEOUT_S = 5.0

_LISTENS_AT = re.compile(rb"http://127\.0\.0\.1:(\d+)")


class Simulator:
    """A simulated server that runs. Raises StartError if it does not come up."""

    def __init__(self, server: Server, log_fd: int) -> None:
        flags = {
            "--instance-type": server.instance_type,
            "--model": SERVED_MODEL,
            "--slots": str(server.slots),
            "--port": "0",
        }
        words = [word for flag in flags.items() for word in flag]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gateway.cli", "simulate", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            preexec_fn=embedded.end_with_parent(),
            process_group=0,  # Ctrl-C is the gateway's: it may have calls under way here
        )
        assert self._process.stdout is not None
        first_line = self._process.stdout.readline()
        listens_at = _LISTENS_AT.search(first_line)
        if listens_at is None:
            self.close()
            raise StartError(f"the simulated {server.instance_type} did not start", code=EXIT_FAILED)
        self.server = server
        self.measured = b"timing: measured" in first_line
        self.address = Address("127.0.0.1", int(listens_at[1]))

    def break_next_call(self) -> None:
        """Make its next call fail with a 500, before any byte of an answer. Raises OSError."""
        fault = b'{"kind":"error_500","times":1}'
        connection = http.client.HTTPConnection(*self.address, timeout=FAULT_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/_sim/fault", fault, {"content-type": "application/json"})
            connection.getresponse().read()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Tour:
    """The calls and what is shown of them, in a thread beside the supervisor."""

    def __init__(self, config: Config, simulators: Sequence[Simulator], keys: Mapping[str, str]) -> None:
        self.failed = False
        self._config = config
        self._state_dir = pathlib.Path(config.state_dir)
        self._simulators = simulators
        self._keys = keys

    def start(self, api: Address) -> None:
        """Begin; the gateway takes calls at `api`."""
        threading.Thread(target=self._run, args=(api,), name="tour", daemon=True).start()

    def _run(self, api: Address) -> None:
        try:
            self._go(api)
        except (ConnectionRefusedError, http.client.RemoteDisconnected):
            return  # the gateway is being stopped, and says so itself if that is a failure
        except (OSError, http.client.HTTPException, LookupError, StoreUnavailable, TourError) as error:
            self.failed = True
            sys.stderr.write(f"weighbridge: the demo failed: {error}\n")
            os.kill(os.getpid(), signal.SIGTERM)

    def _go(self, api: Address) -> None:
        demo_tour.wait_until_ready(api, len(self._simulators))
        clients = {tenant: Client(api, key) for tenant, key in self._keys.items()}
        answers = demo_tour.make_calls(clients, self._break_neuron, say)
        store_url = config_load.redis_url(self._config.redis) or embedded.running_url(self._state_dir)
        if store_url is None:
            raise TourError("the embedded store is not running")
        rows = demo_tour.wait_for_ledger(store_url, self._state_dir, [answer.call_id for answer in answers])
        first, cached, fallback = answers[0].call_id, answers[3].call_id, answers[-1].call_id
        say(f"\n{len(answers)} calls were made; the ledger of {self._state_dir} has, in simulated use:\n\n")
        say(demo_tour.cost_table(rows))
        say(demo_tour.limit_line(LIMITED, LIMITED_PER_MINUTE, answers))
        say(f"\nThe ticket of the streamed call ({self._command('audit show', first)}):\n\n")
        say(demo_tour.ticket(self._state_dir, first))
        say(
            "\nAudit lines of a call with a repeated prompt, and of one that the GPU got since Neuron failed:\n\n"
        )
        say(demo_tour.audit_line(self._state_dir, cached))
        say(demo_tour.audit_line(self._state_dir, fallback))
        say(self._directions(api))

    def _break_neuron(self) -> None:
        for simulator in self._simulators:
            if simulator.server.neuron:
                simulator.break_next_call()

    def _command(self, *words: str) -> str:
        """A command that shows this demo's data, as it is to be typed here."""
        usual = self._state_dir == pathlib.Path(Place().state_dir)
        where = () if usual else ("--state-dir", str(self._state_dir))
        return " ".join((called_as(sys.argv[0]), *words, *where))

    def _directions(self, api: Address) -> str:
        """What to try next; the last line is for programs too."""
        today = datetime.datetime.now(tz=datetime.UTC).date()
        tomorrow = today + datetime.timedelta(days=1)
        key = self._keys[TENANTS[0].name]
        key_files = ", ".join(str(key_file(self._state_dir, tenant.name)) for tenant in (*TENANTS, STAFF))
        assert self._config.ops.listen is not None
        metrics = Address(*host_and_port(self._config.ops.listen)).url
        return f"""
API      {api.url}/v1
metrics  {metrics}/metrics
config   {self._state_dir / CONFIG_FILE}
keys     {key_files}
audit    {self._command("audit show --last 3")}
verify   {called_as(sys.argv[0])} audit verify {self._state_dir}
export   {self._command(f"export --from {today} --to {tomorrow}")}
close    {self._command("close --now")}
report   {self._command("report")}

curl {api.url}/v1/chat/completions -H "Authorization: Bearer {key}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

curl {api.url}/audit/v1/checkpoints -H "Authorization: Bearer $(cat {key_file(self._state_dir, STAFF.name)})"

from openai import OpenAI    # pip install openai
client = OpenAI(base_url="{api.url}/v1", api_key="{key}")
answer = client.chat.completions.create(model="{MODEL}", messages=[{{"role": "user", "content": "Hello"}}])
print(answer.choices[0].message.content)

The fleet is simulated. Ctrl-C ends it all; the data stays in {self._state_dir}.
ready: base_url={api.url}/v1 api_key={key}
"""


def run(args: argparse.Namespace) -> int:
    """Run the demo until SIGINT or SIGTERM. returns: the exit status, as supervisor.run has them."""
    flags = Flags(port=args.port, state_dir=args.state_dir)
    state_dir = pathlib.Path(config_load.place(None, os.environ, flags).state_dir)
    say("A simulated fleet: these servers behave like vLLM, and no accelerator or model is used.\n")
    try:
        # Held by supervisor.run from then on; before it, nothing of a running demo must be changed.
        with supervisor.lock(state_dir):
            keys = {tenant.name: kept_key(key_file(state_dir, tenant.name)) for tenant in (*TENANTS, STAFF)}
        with contextlib.ExitStack() as stack:
            return _run(state_dir, flags, keys, stack)
    except StartError as error:
        sys.stderr.write(f"weighbridge: {error}\n")
        return error.code
    except OSError as error:
        sys.stderr.write(f"weighbridge: {error.filename or state_dir}: {error.strerror or error}\n")
        return EXIT_TAKEN


def _run(state_dir: pathlib.Path, flags: Flags, keys: Mapping[str, str], stack: contextlib.ExitStack) -> int:
    log = stack.enter_context((state_dir / SIMULATORS_LOG).open("ab"))
    simulators = []
    for server in SERVERS:
        simulators.append(stack.enter_context(contextlib.closing(Simulator(server, log.fileno()))))
        timing = "measured" if simulators[-1].measured else "assumed"
        say(f"  {server.name}: {server.instance_type}, {server.slots} slots, timing {timing}\n")
    wanted = Address(*config_load.listen(os.environ, flags))
    config = demo_fleet.configuration(
        {simulator.server.name: simulator.address.url for simulator in simulators},
        {tenant: hash_of(key) for tenant, key in keys.items()},
        listen=str(wanted),
        ops_listen=str(_beside(wanted)),
        state_dir=str(state_dir),
    )
    path = state_dir / CONFIG_FILE
    path.write_text(demo_fleet.to_yaml(config), encoding="utf-8")
    resolved = config_load.load(path, os.environ, flags)
    tour = Tour(resolved, simulators, keys)
    code = supervisor.run(resolved, on_ready=tour.start)
    return EXIT_FAILED if tour.failed else code


def key_file(state_dir: pathlib.Path, tenant: str) -> pathlib.Path:
    """Where the key of a tenant of the demo is kept."""
    return state_dir / (KEY_FILE if tenant == TENANTS[0].name else f"{KEY_FILE}.{tenant}")


def called_as(program: str) -> str:
    """How this program is to be called: by its name, or by the path it was called by if its name is not found."""
    name = pathlib.Path(program).name
    return program if name == "weighbridge" and shutil.which(name) is None else "weighbridge"


def _beside(wanted: Address) -> Address:
    """The port after `wanted`, or any if that is not free: for the metrics."""
    for port in (wanted.port + 1 if wanted.port else 0, 0):
        with contextlib.suppress(OSError), contextlib.closing(Port(Address(wanted.host, port))) as free:
            return free.address
    raise StartError(f"no port is free on {wanted.host}", code=EXIT_TAKEN)


def say(text: str) -> None:
    """To stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
