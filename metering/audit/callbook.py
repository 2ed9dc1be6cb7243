"""Every admitted call has exactly one record: keeping count while a journal is read. Pure."""

from metering.audit.findings import Findings, Place, What

_BLOCK_BITS = 1024


class CallBook:
    """The calls of one writer. front: lines before these are not here, so a record's admission may be among them."""

    def __init__(self, writer: str, findings: Findings, *, front: bool) -> None:
        self.calls = 0
        self.records = 0
        self._prefix = writer + "-"
        self._findings = findings
        self._front = front
        self._open: dict[str, tuple[str, int]] = {}  # where each was admitted
        self._admitted = _Numbers()

    def admit(self, call_id: str, file: str, line: int) -> None:
        """An `admitted` line, at this place."""
        self.calls += 1
        number = self._number(call_id, file, line)
        if number is not None and not self._admitted.add(number):
            says = f"{call_id} is admitted a second time"
            self._findings.add(What.ADMISSION_DOUBLED, Place(file, line), says)
        self._open[call_id] = file, line

    def record(self, call_id: str, file: str, line: int) -> None:
        """A `call` line, at this place."""
        self.records += 1
        if self._open.pop(call_id, None) is not None:
            return
        place = Place(file, line)
        number = self._number(call_id, file, line)
        if number is None:
            return
        if number in self._admitted:
            self._findings.add(What.RECORD_DOUBLED, place, f"{call_id} has a second record")
        elif self._front:
            self._admitted.add(number)
        else:
            self._findings.add(
                What.RECORD_WITHOUT_ADMISSION, place, f"{call_id} has a record and no admission"
            )

    def close(self) -> None:
        """The journal ends here, with its `stop`: no call may be open any more."""
        for call_id, place in self._open.items():
            says = f"{call_id} is admitted, and the journal ends without its record"
            self._findings.add(What.ADMISSION_WITHOUT_RECORD, Place(*place), says)

    @property
    def open(self) -> int:
        """Calls without a record so far."""
        return len(self._open)

    def _number(self, call_id: str, file: str, line: int) -> int | None:
        """A call's number; None: it is no call of this writer, which is a finding."""
        digits = call_id.removeprefix(self._prefix)
        if len(digits) < len(call_id) and digits.isascii() and digits.isdecimal():
            return int(digits)
        says = f"{call_id} is no call of this writer, {self._prefix[:-1]}"
        self._findings.add(What.WRONG_WRITER, Place(file, line), says)
        return None


class _Numbers:
    """A set of whole numbers that lie close together: a bit for each."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}

    def add(self, number: int) -> bool:
        """Put it in; False if it was there before."""
        block, bit = divmod(number, _BLOCK_BITS)
        bits = self._blocks.get(block, 0)
        self._blocks[block] = more = bits | 1 << bit
        return more != bits

    def __contains__(self, number: int) -> bool:
        block, bit = divmod(number, _BLOCK_BITS)
        return bool(self._blocks.get(block, 0) >> bit & 1)
