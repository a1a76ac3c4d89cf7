"""Threads: numbers, forks, concurrent callers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import sysconfig
import threading
import time

import numpy as np
import pytest
from conftest import random_csr

import sparsimd as ss

# More multiply-adds than run on the caller's thread.
LARGE = dict(rows=2000, cols=2000, density=0.05)


def large(rng):
    return ss.csr(random_csr(rng, LARGE["rows"], LARGE["cols"], LARGE["density"], np.float32), shape=(2000, 2000))


def test_numbers_of_threads():
    ss.set_num_threads(2)
    with ss.threads(1):
        assert ss.get_num_threads() == 1 and ss.info()["threads"] == 1
        with ss.threads(3):
            assert ss.get_num_threads() == 3
        assert ss.get_num_threads() == 1
    assert ss.get_num_threads() == 2
    for bad in (0, -1, 10**6, 2**80):
        with pytest.raises(ValueError, match="^n: "):
            ss.set_num_threads(bad)
    assert ss.get_num_threads() == 2
    with pytest.raises(RuntimeError), ss.threads(1):
        raise RuntimeError
    assert ss.get_num_threads() == 2


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"SPARSIMD_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, "3"),
        ({"OMP_NUM_THREADS": "2,1"}, "2"),
        ({"OMP_NUM_THREADS": "nonsense"}, None),
        ({"SPARSIMD_NUM_THREADS": ""}, None),
        ({"SPARSIMD_NUM_THREADS": "nonsense"}, "ValueError"),
    ],
)
def test_environment(variables, expected):
    code = "import sparsimd as ss\ntry: print(ss.get_num_threads())\nexcept ValueError as e: print(type(e).__name__, e)"
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | variables
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if expected is None:
        expected = str(len(os.sched_getaffinity(0)))
    assert run.stdout.split()[0] == expected
    if expected == "ValueError":
        assert "SPARSIMD_NUM_THREADS" in run.stdout


def test_affinity():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import sparsimd; print(sparsimd.get_num_threads())"
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


def test_threads_are_not_pinned(rng):
    allowed = os.sched_getaffinity(0)
    ss.set_num_threads(2)
    large(rng) @ np.ones((2000, 64), np.float32)
    for task in os.listdir("/proc/self/task"):
        assert os.sched_getaffinity(int(task)) == allowed


def child(A, X, expected, queue):
    try:
        with ss.threads(2):
            plan = A.prepare("spmm", X.shape[1], strategy="panel")
            same = np.array_equal(A @ X, expected) and np.allclose(plan @ X, expected, rtol=1e-3, atol=1e-3)
            queue.put((os.getpid(), same))
    except BaseException as error:  # the parent would wait for ever
        queue.put((os.getpid(), repr(error)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(rng):
    A, X = large(rng), rng.uniform(-1, 1, (2000, 64)).astype(np.float32)
    ss.set_num_threads(2)
    expected = A @ X
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=child, args=(A, X, expected, queue)) for _ in range(3)]
    for process in children:
        process.start()
    answers = [queue.get(timeout=60) for _ in children]
    for process in children:
        process.join(60)
        assert process.exitcode == 0
    assert {same for _, same in answers} == {True}
    assert len({pid for pid, _ in answers}) == 3
    np.testing.assert_array_equal(A @ X, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_of_a_fork(rng):
    A, X = large(rng), rng.uniform(-1, 1, (2000, 64)).astype(np.float32)
    ss.set_num_threads(2)
    expected = A @ X
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if np.array_equal(A @ X, expected):
                grandchild = os.fork()
                if grandchild == 0:
                    os._exit(0 if np.array_equal(A @ X, expected) else 1)
                code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


def test_concurrent_callers(rng):
    A, X = large(rng), rng.uniform(-1, 1, (2000, 32)).astype(np.float32)
    expected, wrong = A @ X, []
    plan = A.prepare("spmm", 32)
    first = plan @ X

    def work():
        for _ in range(20):
            if not np.array_equal(A @ X, expected) or not np.array_equal(plan @ X, first):
                wrong.append(1)
            plan.set_values(A.data)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_interpreter_is_released(rng):
    A, X = large(rng), rng.uniform(-1, 1, (2000, 256)).astype(np.float32)
    ss.set_num_threads(1)
    stop, count = threading.Event(), [0]

    def spin():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)

    spinner = threading.Thread(target=spin)
    spinner.start()
    out = ss.empty((2000, 256), np.float32)
    before = count[0]
    for _ in range(20):
        ss.spmm(A, X, out=out)
    during = count[0] - before
    stop.set()
    spinner.join()
    assert during > 20


def test_plans_are_logged(rng, caplog):
    with caplog.at_level(logging.DEBUG, "sparsimd"):
        plan = large(rng).prepare("spmm", 64)
    assert plan.explain() in caplog.text


def test_machine():
    info, topology = ss.info(), ss.topology()
    assert info["simd"] in info["simd_available"] and info["version"] == ss.__version__
    assert info["numa_nodes"] == len(topology["nodes"])
    assert {"cpu", "core", "smt", "l3", "node", "socket"} == set(topology["processors"][0])


ALONE = """
import sys
for name in ("scipy", "torch", "pyttb", "sparse", "tensorly", "tqdm", "matplotlib", "threadpoolctl"):
    sys.modules[name] = None  # importing it fails
import numpy as np, sparsimd as ss
A = ss.csr(([1.0, 2.0], [0, 1], [0, 1, 2]), shape=(2, 2))
T = ss.Tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
assert (A @ np.eye(2) == A.toarray()).all() and (ss.csr(A.T).toarray() == A.toarray().T).all()
assert len(ss.cp_als(T, 1, maxiters=2, stoptol=0).fits) == 2 and ss.tucker(T, 1).core.shape == (1, 1)
for name, call in {
    "scipy": A.to_scipy,
    "pyttb": T.to_pyttb,
    "sparse": T.to_sparse,
    "tqdm": lambda: ss.cp_als(T, 1, progress=True),
    "torch": lambda: __import__("sparsimd.torch"),
}.items():
    try:
        call()
    except ImportError as error:
        assert f"needs the package {name}: pip install {name}" in str(error), error
    else:
        raise AssertionError(name)
"""


def test_only_numpy_is_needed():
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_without_a_lock_the_interpreter_stays_without():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter has a lock")
    assert not sys._is_gil_enabled()


def test_threadpoolctl():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    ss.set_num_threads(2)
    with threadpoolctl.threadpool_limits(1, user_api="sparsimd"):
        assert ss.get_num_threads() == 1
    assert ss.get_num_threads() == 2
    assert any(found["user_api"] == "sparsimd" for found in threadpoolctl.threadpool_info())
