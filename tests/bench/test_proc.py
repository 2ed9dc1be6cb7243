import pathlib
import subprocess
import sys

import pytest

from tests.bench import proc

STAT = (
    "4711 (odd ) name (x) S 17 4711 4711 0 -1 4194560 9000 50 0 0 120 30 7 5 20 0 3 0 100 "
    "1000000 500 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
ROLLUP = """55d0c9a4e000-7ffd3b7f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               46080 kB
Pss:               30123 kB
Pss_Dirty:         20000 kB
"""


def test_a_stat_line_is_read_behind_the_last_bracket_of_the_name() -> None:
    stat = proc.parse_stat(STAT)
    assert stat == proc.Stat(name="odd ) name (x", state="S", parent=17, ticks=150, reaped_ticks=12)


def test_cpu_time_is_the_first_field_of_schedstat() -> None:
    assert proc.parse_schedstat("1234567890 42 7\n") == 1_234_567_890


@pytest.mark.parametrize(("name", "kib"), [("Rss:", 46080), ("Pss:", 30123)])
def test_memory_is_read_from_its_own_line(name: str, kib: int) -> None:
    assert proc.parse_kib(ROLLUP, name) == kib


def test_a_rollup_without_the_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line Pss:"):
        proc.parse_kib("Rss: 1 kB\n", "Pss:")


def test_a_tree_holds_all_that_is_below_and_nothing_beside() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 2, 6: 1, 7: 6}
    assert proc.tree_of(2, parents) == [2, 3, 5, 4]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/bench", "ext4"),
        ("/tmp", "tmpfs"),
        ("/tmp/deep/down", "tmpfs"),
        ("/tmpfoo", "ext4"),  # a name that begins like a mount point is not below it
    ],
)
def test_the_nearest_mount_point_says_the_file_system(path: str, kind: str) -> None:
    mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nproc /proc proc rw 0 0\n"
    assert proc.filesystem_of(pathlib.Path(path), mounts) == kind


def test_what_a_thread_took_stays_when_it_has_ended() -> None:
    burn = (
        "import threading, time\n"
        "def run():\n    while time.thread_time() < 0.2: pass\n"
        "thread = threading.Thread(target=run)\nthread.start()\nthread.join()\nprint('burnt', flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        assert proc.cpu_ns(child.pid) >= 0.19 * proc.NS_PER_S


def test_the_kernel_accounts_for_a_child_of_ours_and_what_it_burnt() -> None:
    burn = "import time\nwhile time.process_time() < 0.1: pass\nprint('burnt', flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        assert proc.tree(child.pid) == [child.pid]
        assert proc.cpu_ns(child.pid) >= 0.1 * proc.NS_PER_S
        assert proc.rss_kib(child.pid) >= proc.pss_kib(child.pid) > 0
        assert "burnt" in proc.command_line(child.pid)
    assert (proc.cpu_ns(child.pid), proc.pss_kib(child.pid), proc.command_line(child.pid)) == (0, 0, "")
