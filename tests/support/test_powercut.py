"""The layer that forgets what was not synced forgets that, and no more."""

import os
import pathlib
import random
import subprocess
import sys

from tests.support.powercut import Cut, PowerCut

ROOT = pathlib.Path(__file__).parents[2]

PROGRAM = """
import os, pathlib, sys
root = pathlib.Path(sys.argv[1])

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

(root / "old").write_bytes(b"old, and more")
deep = root / "deep"
deep.mkdir()
sync(root)
fd = os.open(deep / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, b"durable")
os.fdatasync(fd)
sync(deep)
os.write(fd, b" and more")
(deep / "unnamed").write_bytes(b"x")
sync(deep / "unnamed")
cut = os.open(root / "cut", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(cut, b"durable, and taken back")
os.fsync(cut)
sync(root)
os.ftruncate(cut, 7)
os.write(cut, b"12345")
(root / "tmp").write_bytes(b"renamed")
sync(root / "tmp")
sync(root)
(root / "tmp").rename(root / "final")
(root / "folder").mkdir()
(root / "folder" / "file").write_bytes(b"x")
sync(root / "folder" / "file")
(root / "gone").unlink()
os.kill(os.getpid(), 9)
"""


def run(tmp_path: pathlib.Path, rng: random.Random | None = None) -> tuple[pathlib.Path, Cut]:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "old").write_bytes(b"old")
    (tree / "gone").write_bytes(b"old")
    power = PowerCut(tree, tmp_path / "synced.log")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tree)], env=os.environ | power.environment, cwd=ROOT, check=False
    )
    assert (tree / "final").exists(), "it came to its end"
    return tree, power.cut(rng)


def test_what_was_not_synced_is_gone(tmp_path: pathlib.Path) -> None:
    tree, cut = run(tmp_path)
    held = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert held == {"old": b"old", "deep/synced": b"durable", "cut": b"durable", "tmp": b"renamed"}
    assert sorted(cut.names) == ["deep/unnamed", "final", "folder"]
    assert cut.bytes == len(", and more") + len(" and more") + len("12345")


def test_how_much_of_a_file_is_durable_is_known_before_the_cut(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tree").mkdir()
    power = PowerCut(tmp_path / "tree", tmp_path / "synced.log")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(power.tree)],
        env=os.environ | power.environment,
        cwd=ROOT,
        check=False,
    )
    known = {name: power.durable_bytes(power.tree / name) for name in ("old", "deep/synced", "deep/unnamed")}
    assert known == {"old": 0, "deep/synced": len("durable"), "deep/unnamed": 1}


def test_after_a_cut_all_that_is_left_is_durable(tmp_path: pathlib.Path) -> None:
    tree, _ = run(tmp_path)
    power = PowerCut(tree, tmp_path / "synced.log")
    assert power.cut() == Cut(0, [])
    assert (tree / "deep" / "synced").read_bytes() == b"durable"


def test_a_part_of_it_may_stay(tmp_path: pathlib.Path) -> None:
    kept = set()
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        tree, _ = run(tmp_path / str(seed), random.Random(seed))
        data = (tree / "deep" / "synced").read_bytes()
        assert data.startswith(b"durable")
        assert b"durable and more".startswith(data.rstrip(b"\0"))
        kept.add(data)
    assert len(kept) > 5
    assert any(data.endswith(b"\0") for data in kept)
