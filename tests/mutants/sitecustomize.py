"""Breaks the product on purpose, in child processes of a test: put this directory on their PYTHONPATH.

Python imports `sitecustomize` by itself at its start. Nothing in the product knows of this; the environment
variable KILL_TEST_MUTANT names the break. A test that passes with one of these on proves nothing.
POWERCUT_LOG switches on the layer of tests/support/powercut.py, which notes what is synced; CRASH_PROBE the one of
tests/crash/probe.py, which counts calls and crashes where it is told to.
"""

import os

if log := os.environ.get("POWERCUT_LOG"):
    from tests.support import powercut

    powercut.install(log)

if probe_directory := os.environ.get("CRASH_PROBE"):
    from tests.crash import probe

    probe.install(probe_directory)

if name := os.environ.get("KILL_TEST_MUTANT"):
    import mutations

    mutations.MUTATIONS[name]()
