"""Number of threads, their yielding on a busy machine, and their state in a forked process."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from checkout import BENCH
from draftwood.models.native import NativeModel
from draftwood.native import library, threads
from draftwood.testing import tiny_llama

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's files")
CHAIN = [5, 17, 30, 22, 9]


def system(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """A root with these files of the system in it."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


NEW = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
OLD = "31 20 0:27 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = (
    "32 20 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n25 1 8:1 / / rw - ext4"
    " /dev/sda1 rw\n"
)
V1 = "sys/fs/cgroup/cpu,cpuacct"


@LINUX
@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        pytest.param("0::/\n", NEW, {}, math.inf, id="no quota"),
        pytest.param(
            "0::/\n", NEW, {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, id="version 2"
        ),
        pytest.param(
            "0::/a/b\n", NEW, {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, math.inf, id="max"
        ),
        pytest.param(
            "0::/a/b\n",
            NEW,
            {
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
            id="the group around it is given less",
        ),
        pytest.param(
            "9:memory:/x\n4:cpu,cpuacct:/a\n",
            OTHER + OLD.format(top="/"),
            {f"{V1}/a/cpu.cfs_quota_us": "50000\n", f"{V1}/a/cpu.cfs_period_us": "100000\n"},
            0.5,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/123\n",
            OTHER + OLD.format(top="/docker/123"),
            {f"{V1}/cpu.cfs_quota_us": "300000\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            3.0,
            id="version 1, mounted from the container's own group",
        ),
        pytest.param(
            "4:cpu,cpuacct:/elsewhere\n",
            OTHER + OLD.format(top="/docker/123"),
            {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            math.inf,
            id="version 1, no quota",
        ),
        pytest.param(
            "0::/\n",
            NEW,
            {"sys/fs/cgroup/cpu.max": "what is this\n"},
            math.inf,
            id="not understood",
        ),
    ],
)
def test_quotas_of_both_versions_are_read(
    groups: str, mounts: str, files: dict[str, str], expected: float, tmp_path: Path
) -> None:
    assert threads.quota(system(tmp_path, groups, mounts, files)) == expected


def test_without_such_files_there_is_no_quota(tmp_path: Path) -> None:
    assert threads.quota(tmp_path) == math.inf


@pytest.mark.parametrize(
    ("told", "cpus", "quota", "expected"),
    [(4, 8, math.inf, 4), (4, 2, math.inf, 2), (4, 8, 1.5, 2), (4, 8, 0.25, 1), (1, 8, 3.0, 1)],
)
def test_the_smallest_number_counts(
    told: int, cpus: int, quota: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: told)
    monkeypatch.setattr(threads, "cpus", lambda: cpus)
    monkeypatch.setattr(threads, "quota", lambda root: quota)
    threads.of_quota.cache_clear()
    try:
        assert threads.threads() == expected
    finally:
        threads.of_quota.cache_clear()


@LINUX
def test_cpus_that_are_taken_away_are_not_counted() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert threads.cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert threads.cpus() == len(before)


def run(model: NativeModel, count: int) -> torch.Tensor:
    """Logits of a prompt and a chain on so many threads, as if there were CPUs for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        session = model.start()
        first = session.extend([3, 1, 4, 1, 5, 9, 2, 6] * 4).logits
        found = torch.cat([first, *(session.extend([token]).logits for token in CHAIN)])
        session.close()
        return found
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpus", lambda: 64)
    monkeypatch.setattr(threads, "of_quota", lambda: 64)


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_any_number_of_threads_gives_the_same_bits(products) -> None:
    model = NativeModel(tiny_llama(0, layers=3), products)
    expected = run(model, 1)
    for count in (2, 3, 7, 16, 5, 1):
        for _ in range(5):
            assert torch.equal(run(model, count), expected), f"{count} threads"


@pytest.mark.usefixtures("many_cpus")
def test_several_python_threads_take_turns_or_work_alone() -> None:
    torch.set_num_threads(3)
    rows = torch.randn(40, 5000)
    compiled = library.library()

    def largest() -> torch.Tensor:
        places = torch.empty(40, 8, dtype=torch.int64)
        compiled.draftwood_topk(rows.data_ptr(), 40, 5000, 5000, 8, places.data_ptr(), 1.0, None, 3)
        return places

    expected, wrong = largest(), []

    def work() -> None:
        for _ in range(200):
            if not torch.equal(largest(), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(6)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    finally:
        torch.set_num_threads(1)
    assert not any(worker.is_alive() for worker in workers)
    assert not wrong


STARTED = """
import os, time, torch
from draftwood.models.native import NativeModel
from draftwood.native import threads
from draftwood.testing import tiny_llama
torch.set_num_threads(8)
threads.cpus = lambda: 8
threads.of_quota.cache_clear()
threads.quota = lambda root: {quota}
weights = tiny_llama(0, layers=3)
before = len(os.listdir("/proc/self/task"))
model = NativeModel(weights)
model.start().extend(list(range(2, 60)))
until = time.monotonic() + 5
while True:
    allowed = set()
    for task in os.listdir("/proc/self/task"):
        status = open("/proc/self/task/" + task + "/status").read()
        allowed.add(status.partition("Cpus_allowed:")[2].split()[0])
    if len(allowed) == 1 or time.monotonic() > until:
        break
    time.sleep(0.01)  # one that moves to a CPU of its own is bound to it for a moment
print(len(os.listdir("/proc/self/task")) - before, len(allowed))
"""


@LINUX
@pytest.mark.parametrize(("quota", "started"), [("2.5", 2), ("1.0", 0), ("6.0", 5)])
def test_threads_above_the_quota_are_not_started(quota: str, started: int) -> None:
    """And those that are may run wherever the process may."""
    code = STARTED.replace("{quota}", quota)
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(started), "1"]


FORKED = """
import os, sys, torch
torch.set_num_threads(2)
from draftwood.models.native import NativeModel
from draftwood.native import threads
from draftwood.testing import tiny_llama
threads.cpus = threads.of_quota = lambda: 2
model = NativeModel(tiny_llama(0, layers=3))
def logits():
    return model.start().extend(list(range(2, 30))).logits
expected = logits()
for generation in range(3):
    child = os.fork()
    if child:
        break
    if not torch.equal(logits(), expected):
        os._exit(7)
else:
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(status or (0 if torch.equal(logits(), expected) else 8))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_runs_with_a_team_of_its_own() -> None:
    """Its parent, its child and its grandchild too."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], timeout=60, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@LINUX
@pytest.mark.usefixtures("many_cpus")
def test_nobody_spins_while_there_is_nothing_to_do() -> None:
    model = NativeModel(tiny_llama(0, layers=3))
    run(model, 4)
    time.sleep(0.05)
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.05


BUSY = BENCH / "benchmarks" / "busy.py"


@LINUX
@pytest.mark.proof
@pytest.mark.model
@pytest.mark.timeout(280)
def test_busy_loops_of_low_priority_leave_most_of_the_speed() -> None:
    """At least 0.3 of the idle speed; 0.75 to 0.9 on a machine that is idle but for them."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2 or os.getloadavg()[0] > cpus / 2:
        pytest.skip(
            f"this needs two idle CPUs; there are {cpus}, and a load of {os.getloadavg()[0]:.1f}"
        )
    command = [
        sys.executable,
        str(BUSY),
        "run",
        "--cases",
        "nice loop,nice loops",
        "--rounds",
        "3",
        "--tokens",
        "48",
        "--json",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    assert record["texts_are_equal"]
    shares = {
        (row["case"], row["method"]): row["of_idle"]
        for row in record["rows"]
        if row["case"] != "idle"
    }
    assert len(shares) == 4
    assert min(shares.values()) >= 0.3, shares
