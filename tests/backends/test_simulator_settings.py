import pytest

from backends.simulator.settings import Settings


@pytest.mark.parametrize(
    "bad", [{"slots": 0}, {"max_model_len": 1}, {"time_scale": 0}, {"time_scale": 2_000}]
)
def test_what_no_server_can_be(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(instance_type="inf2.48xlarge", model="m", **bad)


def test_what_one_can_be() -> None:
    assert Settings(instance_type="t", model="m", slots=1, max_model_len=2, time_scale=0.01).slots == 1
