"""What one simulated server is. Pure."""

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """slots: sequences at a time (`max_num_seqs`); None: the full batch of the timing's source.

    max_model_len: prompt and answer, in tokens; None: as in the timing's source.
    time_scale: factor on all times, below 1 for tests. cache_blocks_max: of 16 tokens each.
    responses_max: of the API of that name, kept to be asked for again, or continued; the oldest go first.
    log_entries_max, log_raw_bytes_max: what `/_sim/log` keeps; the oldest go first.
    """

    instance_type: str
    model: str
    slots: int | None = None
    max_model_len: int | None = None
    time_scale: float = 1.0
    cache_blocks_max: int = 8_192
    responses_max: int = 1_000
    log_entries_max: int = 200_000
    log_raw_bytes_max: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.slots is not None and self.slots < 1:
            raise ValueError("slots is 1 or more")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError("max_model_len is 2 or more")
        if not 0 < self.time_scale <= 1_000:
            raise ValueError("time_scale is above 0 and at most 1000")
