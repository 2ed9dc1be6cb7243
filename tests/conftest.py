"""Fixtures that every test may use; shared code is in tests/support."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
