"""Answers of the audit face, from the files of a state directory. Blocking; for a process of its own."""

import contextlib
import pathlib
from typing import Any, Literal

import msgspec

from gateway.configuration import archives, config_load
from gateway.configuration.config import Config
from gateway.duties import verify_duty
from gateway.faces import audit_peers, audit_questions
from gateway.faces.answers import Answer
from gateway.faces.audit_questions import (
    Call,
    Changes,
    Checkpoints,
    Keys,
    NewVerification,
    Proof,
    Question,
    Verification,
)
from metering.audit import audit, changes, latest_notes, prove, verify
from metering.audit.changes import Change, Place
from metering.journal.journal import Directory
from metering.record import Admitted

KEYS_FILE = pathlib.Path("keys") / "keys.json"

Json = dict[str, Any]


def answer(question: Question, config: Config) -> Answer:
    """Raises OSError, ArchiveError, ConfigErrors (a key of another gateway cannot be read)."""
    state_dir = pathlib.Path(config.state_dir)
    match question:
        case Call():
            return _call(question, config)
        case Proof():
            return _proof(question, config)
        case Checkpoints():
            archive = archives.archive_of(config.journal)
            found = latest_notes.latest(state_dir / "journal", question.writer, archive)
            if question.writer is not None and not found:
                return Answer(status=404, message=f"there is no journal of the writer {question.writer} here")
            return _listed([msgspec.to_builtins(one) for one in found])
        case Changes():
            return _changes(question, config)
        case Keys():
            return _kept(state_dir / KEYS_FILE, [])
        case Verification():
            return _kept(state_dir / verify_duty.RESULT, {"verdict": None})
        case NewVerification():
            (state_dir / verify_duty.WANTED).touch()
            return _ok({"wanted": True})


def _call(question: Call, config: Config) -> Answer:
    root, writer = _place(question, config)
    here = (root / writer).is_dir()
    missing: Answer | None = None
    if here:
        try:
            return _shown(root, question.call_id, "here")
        except audit.NotFound as error:
            missing = _not_there(error, root)
    with archives.recalled(config.journal, question.call_id) as archived, contextlib.suppress(audit.NotFound):
        if archived is not None:
            return _shown(archived, question.call_id, "archive")
    return missing or _elsewhere(question, config, "")


def _shown(root: pathlib.Path, call_id: str, where: Literal["here", "archive"]) -> Answer:
    """Raises audit.NotFound."""
    found = audit.find(root, call_id)
    is_open = isinstance(found.line, Admitted)
    admission = found.line if is_open else audit.admission(Directory(root / found.writer), call_id)
    return _ok(
        {
            "object": "audit.call",
            "call_id": found.line.call_id,
            "state": "open" if is_open else "ended",
            "record": None if is_open else found.line,
            "admission": admission,
            "host": found.host,
            "place": {
                "writer": found.writer,
                "seq": found.line.seq,
                "leaf": found.leaf,
                "prev": found.line.prev,
                "file": f"{found.writer}/{found.file.name}",
            },
            "found": where,
        }
    )


def _proof(question: Proof, config: Config) -> Answer:
    root, writer = _place(question, config)
    try:
        proof = archives.prove(root, config.journal, question.call_id, verify.trust_beside(root))
    except audit.NotFound as error:
        here = (root / writer).is_dir()
        return _not_there(error, root) if here else _elsewhere(question, config, "/proof")
    except (prove.NotProven, verify.VerifyError) as error:
        return _not_there(error, root)
    return Answer(status=200, content=msgspec.Raw(msgspec.json.encode(proof, order="sorted")))


def _place(question: Call | Proof, config: Config) -> tuple[pathlib.Path, str]:
    """The journals' root, and the writer that the call's id names."""
    return pathlib.Path(config.state_dir) / "journal", question.call_id.rpartition("-")[0]


def _not_there(error: Exception, root: pathlib.Path) -> Answer:
    return Answer(status=404, message=str(error).replace(f"{root}/", ""))


def _elsewhere(question: Call | Proof, config: Config, of_it: str) -> Answer:
    """Its writer's journal is not in this state directory: the gateway that has it is asked. of_it: end of the path."""
    peers = config.audit.peers if question.ask_others else ()
    keys = config_load.peer_keys(config) if peers else {}
    asked = audit_peers.ask(peers, keys, f"/audit/v1/calls/{question.call_id}{of_it}")
    if asked.found is not None:
        if isinstance(question, Proof):
            return Answer(status=200, content=asked.found.content)
        content = msgspec.json.decode(asked.found.content, type=dict[str, msgspec.Raw])
        content["found"] = msgspec.Raw(msgspec.json.encode(asked.found.url))
        return Answer(status=200, content=msgspec.Raw(msgspec.json.encode(content)))
    if asked.silent:
        names = ", ".join(asked.silent)
        return Answer(status=503, message=f"it is not here, and could not be asked for at {names}")
    others = f", nor at {len(peers)} other gateways" if peers else ""
    writer = _place(question, config)[1]
    return Answer(status=404, message=f"the journal of the writer {writer} is not here{others}")


def _changes(question: Changes, config: Config) -> Answer:
    found = changes.page(
        pathlib.Path(config.state_dir) / "journal",
        from_ns=question.from_ns,
        to_ns=question.to_ns,
        topic=question.topic,
        after=None if question.after is None else Place(*question.after),
        count=question.count,
        archive=archives.archive_of(config.journal),
    )
    content = {"object": "list", "data": [_change(one) for one in found.changes]}
    return _ok(content | {"next": None if found.next is None else audit_questions.cursor(found.next)})


def _change(change: Change) -> Json:
    event = change.event
    return {
        "topic": event.topic,
        "actor": event.actor,
        "at_ns": event.at_ns,
        "data": event.data,
        "writer": change.writer,
        "seq": event.seq,
        "leaf": change.leaf,
    }


def _kept(path: pathlib.Path, default: object) -> Answer:
    """What a file of ours holds. Raises OSError."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        content = default
    return _listed(content) if isinstance(content, list) else _ok(content)


def _listed(items: list[Any]) -> Answer:
    return _ok({"object": "list", "data": items})


def _ok(content: object) -> Answer:
    shown = audit.times_as_text(msgspec.to_builtins(content))
    return Answer(status=200, content=msgspec.Raw(msgspec.json.encode(shown)))
