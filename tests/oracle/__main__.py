"""Judge a run from its evidence alone: `python -m tests.oracle DIRECTORY`. Exit status 1: something is wrong."""

import pathlib
import sys

from tests.oracle.evidence import judge

faults = judge(pathlib.Path(sys.argv[1]))
for fault in faults:
    print(fault)
print(f"faults={len(faults)}")
sys.exit(bool(faults))
