"""Work units: tokens weighted by what they cost to make, to compare prompts with completions. Pure.

    work units = (prompt − cached) × prompt weight + cached × cached weight + completion × completion weight

Weights are whole numbers of work units for a token, of one model on one kind of hardware, from a day on; they are
never changed for the time before. Where none are known, those of DEFAULT count: a completion token is taken as four
of the prompt, and a cached one as a tenth. Only their ratios matter, save to `per_hour`.
"""

from collections.abc import Iterable

import msgspec

from metering.periods import parse_instant

DEFAULT_PROMPT = 1_000
DEFAULT_CACHED_PROMPT = 100
DEFAULT_COMPLETION = 4_000
ANY = "any"
"""The hardware of the default weights."""


class WorkUnits(msgspec.Struct, frozen=True, kw_only=True):
    """Work units for a token of each kind. hardware: an instance family or one instance type; date: since when.

    per_hour: calibrated capacity, the work units that a whole instance makes in an hour at full load; None: unknown.
    """

    cached_prompt: int = DEFAULT_CACHED_PROMPT
    completion: int = DEFAULT_COMPLETION
    date: str
    hardware: str
    model: str
    per_hour: int | None = None
    prompt: int = DEFAULT_PROMPT
    source: str

    @property
    def id(self) -> str:
        """ "<model>/<family or type>@<date>", as of a rate card."""
        return f"{self.model}/{self.hardware}@{self.date}"

    def of(self, prompt_tokens: int, cached_prompt_tokens: int, completion_tokens: int) -> int:
        """The work units of these tokens. prompt_tokens include the cached ones."""
        assert 0 <= cached_prompt_tokens <= prompt_tokens
        assert completion_tokens >= 0
        fresh = prompt_tokens - cached_prompt_tokens
        return (
            fresh * self.prompt
            + cached_prompt_tokens * self.cached_prompt
            + completion_tokens * self.completion
        )


class WorkUnitTable:
    """All weights, by model and hardware."""

    def __init__(self, weights: Iterable[WorkUnits] = ()) -> None:
        self._weights: dict[tuple[str, str], list[WorkUnits]] = {}
        for one in sorted(weights, key=lambda one: parse_instant(one.date)):
            self._weights.setdefault((one.model, one.hardware), []).append(one)

    def at(self, model: str, instance_type: str | None, family: str | None, at_ns: int) -> WorkUnits:
        """The newest weights in force for the instance type, else for the family, else the default."""
        for hardware in (instance_type, family):
            known = self._weights.get((model, hardware), []) if hardware is not None else []
            in_force = [one for one in known if parse_instant(one.date) <= at_ns]
            if in_force:
                return in_force[-1]
        return WorkUnits(date="1970-01-01", hardware=ANY, model=model, source="default")
