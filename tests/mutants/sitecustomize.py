"""Breaks the product on purpose, in child processes of a test: put this directory on their PYTHONPATH.

Python imports `sitecustomize` by itself at its start. Nothing in the product knows of this; the environment
variable KILL_TEST_MUTANT names the break. A test that passes with one of these on proves nothing.
"""

import os

if name := os.environ.get("KILL_TEST_MUTANT"):
    import mutations

    mutations.MUTATIONS[name]()
