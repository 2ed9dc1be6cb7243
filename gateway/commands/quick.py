"""`serve --backend URL`: a gateway in front of a server that somebody has, with no file.

One tenant, `default`, whose key is kept in <state_dir>/api-key; a model for each name that is served.
"""

import argparse
import os
import pathlib
import sys

from gateway.api.auth import hash_of
from gateway.commands.discovery import NoModel, served_model
from gateway.commands.keys import KEY_FILE, kept_key
from gateway.configuration import config_load
from gateway.configuration.config_check import wrong_backend_url
from gateway.configuration.config_load import Flags, Served
from gateway.configuration.config_tree import ConfigErrors, Mistake
from gateway.processes import supervisor
from gateway.processes.sockets import Address
from gateway.processes.supervisor import EXIT_FAILED, EXIT_TAKEN


def serve(args: argparse.Namespace, flags: Flags) -> int:
    """Find out what the servers serve, and run. returns: the exit status. Raises ConfigErrors."""
    wrong = [(url, wrong_backend_url(url)) for url in args.backend]
    mistakes = [Mistake("--backend", 0, url, message) for url, message in wrong if message]
    twice = {url for url in args.backend if args.backend.count(url) > 1}
    mistakes += [Mistake("--backend", 0, url, "is given twice") for url in sorted(twice)]
    if mistakes:
        raise ConfigErrors(mistakes)
    place = config_load.place(None, os.environ, flags)
    key_file = pathlib.Path(place.state_dir) / KEY_FILE
    try:
        key = kept_key(key_file)
    except OSError as error:
        _say(f"{error.filename or key_file}: {error.strerror or error}")
        return EXIT_TAKEN
    try:
        served = [Served(url=url, model=args.model or served_model(url, _say)) for url in args.backend]
    except NoModel as error:
        _say(str(error))
        return EXIT_FAILED
    config = config_load.for_backends(
        served,
        key_hash=hash_of(key),
        env=os.environ,
        flags=flags,
        instance_type=args.instance_type,
        slots=args.slots,
    )

    for note in config_load.notes(config):
        _say(note)

    def ready(address: Address) -> None:
        models = ", ".join(sorted({backend.model for backend in served}))
        _say(f"ready: base_url={address.url}/v1 model={models}; the API key is in {key_file}")

    return supervisor.run(config, on_ready=ready)


def _say(text: str) -> None:
    sys.stderr.write(f"weighbridge: {text}\n")
    sys.stderr.flush()
