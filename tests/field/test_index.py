"""Every field report of the kinds that this gateway answers for has a test named for it: test_br_<number>_…"""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
REPORTS = {
    "a_usage": (1, 2, 4, 6, 7, 9, 10, 12),
    "b_disconnects": (14, 15, 17, 18, 20, 22),
    "c_g_attempts": (23, 24, 34, 77, 86, 87, 94),
    "c_store": (29, 30),
    "c_budgets": (26, 27, 32),
    "d_framing": (35, 36, 38, 40, 41, 43, 44, 46, 47, 50),
    "e_errors": (51, 52, 54, 55, 57, 58, 60),
    "h_limits": (91, 92, 94, 95, 97, 98),
    "f_requests": (61, 62, 64, 65, 67, 68, 70, 71, 73, 74),
    "i_metrics": (100, 101, 103, 104),
    "j_slow_paths": (106, 107, 109, 110),
    "k_access": (115,),
    "k_security": (112, 113, 116, 118, 120, 121),
    "l_prices": (123, 124, 126, 127, 134, 143),
    "l_exports": (129, 132),
    "l_pages": (130,),
}

"""By the file of their tests."""


@pytest.mark.parametrize("kind", REPORTS)
def test_every_report_has_a_test(kind: str) -> None:
    text = (HERE / f"test_{kind}.py").read_text()
    named = {int(number) for number in re.findall(r"^def test_br_(\d{3})_", text, re.MULTILINE)}
    assert sorted(named) == sorted(REPORTS[kind])
