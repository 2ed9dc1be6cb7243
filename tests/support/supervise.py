"""Run the supervisor with a worker of the test's choice: `python -m tests.support.supervise CONFIG WORKER…`.

CONFIG is the resolved configuration as a JSON file. Prints `ready <host>:<port>` on stdout.
"""

import pathlib
import sys

from gateway.configuration.config import from_json
from gateway.processes import supervisor


def main() -> int:
    config = from_json(pathlib.Path(sys.argv[1]).read_bytes())
    return supervisor.run(
        config,
        on_ready=lambda address: print("ready", address, flush=True),
        worker=sys.argv[2:],
    )


if __name__ == "__main__":
    sys.exit(main())
