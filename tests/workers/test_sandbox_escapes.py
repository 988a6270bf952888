"""Attempts to break out of the sandbox. Each really tries; a guard that this machine lacks skips
its test by name.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.lib.sandbox import CodeError, Limits, Pool

SECRET = "planted-secret-5f1c"
QUICK = Limits(seconds=60.0)
# For threads: one that begins and finds no memory is waited for until the time is over.
ROOMY = Limits(seconds=60.0, memory=16 << 30)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    os.environ["PLANTED_SECRET"] = SECRET
    pool = Pool(1)
    pool.guards()  # its server runs from here on, whichever test is the first
    yield pool
    pool.close()
    del os.environ["PLANTED_SECRET"]


@pytest.fixture
def needs(pool: Pool) -> Callable[..., None]:
    def check(*names: str) -> None:
        lacking = [name for name in names if not pool.guards()[name]]
        if lacking:
            pytest.skip(f"this machine lacks: {', '.join(lacking)}")

    return check


def still_works(pool: Pool) -> bool:
    """What a run left behind must not reach the next one."""
    return pool.grade("def grade(sample, item): return 0.25", {}, {}) == 0.25


def attempt(pool: Pool, body: str, *arguments: object, limits: Limits = QUICK) -> str:
    """ "done: …" where the body's last expression came about, else the name of the exception that
    stopped it.
    """
    source = "def attempt(*given):\n  try:\n" + "\n".join(
        f"    {line}" for line in body.splitlines()
    )
    source += "\n  except BaseException as error:\n    return type(error).__name__\n"
    return pool.call(source, "attempt", list(arguments), limits=limits)


def parent_of(pid: int) -> int:
    """0 for the first process, and for one that has just ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def runs_the_sandbox(pid: int) -> bool:
    try:
        return b"sandbox/inside" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def inside_processes() -> set[int]:
    """Processes that run the sandbox and are this test's, or nobody's: those of tests beside it do
    not count.
    """
    above, pid = set(), os.getpid()
    while pid := parent_of(pid):
        above.add(pid)
    found = set()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        owner = pid
        while runs_the_sandbox(owner):
            owner = parent_of(owner)
        if owner != pid and (owner in above | {0} or is_ours(owner)):
            found.add(pid)
    return found


def is_ours(pid: int) -> bool:
    while pid and pid != os.getpid():
        pid = parent_of(pid)
    return bool(pid)


def nothing_stays(before: set[int]) -> bool:
    """Whether what was begun since has ended, or does within seconds: the kernel takes a moment to
    clear away.
    """
    end = time.monotonic() + 300
    while inside_processes() - before and time.monotonic() < end:
        time.sleep(0.02)
    return not inside_processes() - before


@pytest.mark.parametrize(
    "body",
    [
        "import os\nreturn f'done {os.fork()}'",
        "import subprocess\nreturn f'done {subprocess.run([\"/bin/true\"])}'",
        "import os\nos.execv('/bin/true', ['true'])",
        "import pty\nreturn f'done {pty.fork()}'",
    ],
    ids=["fork", "subprocess", "exec", "pty"],
)
def test_no_process_is_started(pool: Pool, needs: Callable, body: str) -> None:
    needs("seccomp")
    assert attempt(pool, body) in ("PermissionError", "OSError")


def test_a_fork_bomb_of_a_program_that_may_fork_is_held_and_swept(
    pool: Pool, needs: Callable
) -> None:
    needs("process_limit", "pid_namespace")
    before = inside_processes()
    program = (
        "import os, time\nmade = 0\n"
        "for _ in range(500):\n"
        "    try:\n        pid = os.fork()\n    except OSError:\n        break\n"
        "    if pid == 0:\n        os.setpgrp() if False else None\n        time.sleep(60)\n"
        "    made += 1\nprint(made)"
    )
    ran = pool.run(program, limits=Limits(seconds=60, processes=8))
    assert ran.reason == "ok" and 0 < int(ran.stdout) < 60
    assert nothing_stays(before)
    assert still_works(pool)


def test_an_endless_fork_bomb_ends_with_the_time(pool: Pool, needs: Callable) -> None:
    needs("process_limit", "pid_namespace")
    before = inside_processes()
    program = (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    )
    assert pool.run(program, limits=Limits(seconds=1, processes=8)).reason == "time"
    assert nothing_stays(before) and still_works(pool)


def test_memory_is_limited(pool: Pool) -> None:
    ran = pool.run(
        "x = []\nwhile True: x.append(bytearray(10_000_000))", limits=Limits(memory=256 << 20)
    )
    assert ran.reason == "memory"
    with pytest.raises(CodeError) as error:
        pool.grade("def grade(s, i): return len('x' * 10**12)", {}, {})
    assert error.value.reason == "memory"


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX", "abstract"])
def test_no_connection_is_made(pool: Pool, needs: Callable, tmp_path: Path, family: str) -> None:
    needs("network")
    kind = socket.AF_INET if family == "AF_INET" else socket.AF_UNIX
    address: object = {
        "AF_UNIX": str(tmp_path / "s"),
        "abstract": f"\0sandbox-test-{os.getpid()}",
    }.get(family)
    with socket.socket(kind) as listener:
        listener.bind(address or ("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        target = list(listener.getsockname()) if kind == socket.AF_INET else address
        body = (
            "import socket\ns ="
            f" socket.socket(socket.{'AF_INET' if kind == socket.AF_INET else 'AF_UNIX'})\nt ="
            " given[0]\ns.connect(tuple(t) if isinstance(t, list) else t)\nreturn 'done'"
        )
        assert attempt(pool, body, target) in ("PermissionError", "OSError", "FileNotFoundError")
        with pytest.raises(TimeoutError):
            listener.accept()


def test_the_network_namespace_has_no_way_out(pool: Pool, needs: Callable) -> None:
    """By system calls that name no socket call of Python's: the raw number, and one that is refused
    unseen.
    """
    needs("seccomp")
    body = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nreturn libc.syscall({}, 2, 1, 0)"
    )
    numbers = {"x86_64": (41, 42, 425, 0x40000000 + 41), "aarch64": (198, 203, 425)}[
        os.uname().machine
    ]
    assert [attempt(pool, body.format(number)) for number in numbers] == [-1] * len(numbers)


def test_asyncio_still_runs(pool: Pool) -> None:
    source = "import asyncio\nasync def f(): return 0.5\ndef grade(s, i): return asyncio.run(f())"
    assert pool.grade(source, {}, {}) == 0.5


def test_the_environment_is_empty(pool: Pool) -> None:
    assert os.environ["PLANTED_SECRET"] == SECRET
    said = pool.call("import os\ndef f(): return [dict(os.environ), repr(os.environb)]", "f", [])
    assert said[0] == {} and SECRET not in str(said)


@pytest.mark.parametrize("process", ["self", "parent", "1", "application"])
def test_no_environment_is_read_from_proc(pool: Pool, needs: Callable, process: str) -> None:
    needs("files")
    which = {"self": "'self'", "parent": "os.getppid()", "1": "1", "application": "given[0]"}[
        process
    ]
    body = (
        f"import os\nreturn open('/proc/' + str({which}) + '/environ',"
        " 'rb').read().decode(errors='replace')"
    )
    said = attempt(pool, body, os.getpid())
    assert said in ("FileNotFoundError", "PermissionError")


def test_no_file_of_the_machine_is_read(pool: Pool, needs: Callable, tmp_path: Path) -> None:
    needs("files")
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    root = Path(__file__).resolve().parents[2]
    paths = [
        secret,
        root / "flywheel" / "settings.py",
        "/etc/passwd",
        "/etc/shadow",
        Path.home() / ".bashrc",
        "/proc/1/maps",
    ]
    for path in paths:
        assert attempt(pool, "return open(given[0]).read()", str(path)) in (
            "FileNotFoundError",
            "PermissionError",
        ), path
    for folder in ("/", "/home", "/root", "/tmp", str(tmp_path), "/proc", "/var"):
        said = attempt(pool, "import os\nreturn os.listdir(given[0])", folder)
        assert said in ("FileNotFoundError", "PermissionError"), (folder, said)


def test_a_link_does_not_lead_out(pool: Pool, needs: Callable, tmp_path: Path) -> None:
    needs("files")
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    for how in (
        "os.symlink(given[0], 'link')",
        "os.link(given[0], 'link')",
        "os.symlink('../../../..' + given[0], 'link')",
    ):
        said = attempt(pool, f"import os\n{how}\nreturn open('link').read()", str(secret))
        assert said in ("FileNotFoundError", "PermissionError", "OSError"), said


def test_sweeping_the_scratch_folder_follows_no_link(pool: Pool, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("here")
    pool.run(
        f"import os\nos.symlink({str(kept)!r},"
        f" 'out')\nos.makedirs('a/b')\nos.symlink({str(kept)!r}, 'a/b/out')"
    )
    assert (kept / "file").read_text() == "here"
    assert pool.run("import os\nprint(os.listdir('.'))").stdout == "[]\n"


def test_a_folder_without_rights_is_swept_too(pool: Pool) -> None:
    pool.run(
        "import os\nos.makedirs('a/b/c')\nopen('a/b/f', 'w').close()\nos.chmod('a/b',"
        " 0)\nos.chmod('a', 0)"
    )
    assert pool.run("import os\nprint(os.listdir('.'))").stdout == "[]\n"


def test_nothing_is_written_outside_the_scratch_folder(
    pool: Pool, needs: Callable, tmp_path: Path
) -> None:
    needs("files")
    tmp_path.chmod(0o777)
    for target in (str(tmp_path / "x"), "/x", "/tmp/sandbox-x", "/dev/x", os.__file__):
        said = attempt(pool, "open(given[0], 'a').write('x')\nreturn 'done'", target)
        assert said in ("FileNotFoundError", "PermissionError", "OSError"), (target, said)
    assert not (tmp_path / "x").exists() and not Path("/tmp/sandbox-x").exists()


def test_files_are_limited_in_size(pool: Pool) -> None:
    body = (
        "f = open('big', 'wb')\nfor _ in range(64): f.write(b'0' * (1 << 20)); f.flush()\nreturn"
        " 'done'"
    )
    assert attempt(pool, body, limits=Limits(file=4 << 20)) == "OSError"


def test_the_scratch_folder_is_limited_in_size(pool: Pool, needs: Callable) -> None:
    needs("scratch_limit")
    body = (
        "for n in range(64):\n  with open(f'f{n}', 'wb') as f: f.write(b'0' * (8 << 20))\nreturn"
        " 'done'"
    )
    assert attempt(pool, body) == "OSError"
    assert still_works(pool)


@pytest.mark.parametrize("target", ["os.getppid()", "1", "-1", "given[0]", "0"])
@pytest.mark.parametrize("number", [9, 15, 19])
def test_no_other_process_is_killed(pool: Pool, needs: Callable, target: str, number: int) -> None:
    needs("seccomp")
    said = attempt(pool, f"import os\nos.kill({target}, {number})\nreturn 'done'", os.getpid())
    assert said in ("PermissionError", "ProcessLookupError")
    assert still_works(pool)


def test_programs_that_may_fork_cannot_kill_the_server(pool: Pool, needs: Callable) -> None:
    needs("pid_namespace", "seccomp")
    (server,) = pool._all
    limits = Limits(seconds=2, processes=4)
    for target in ("1", "os.getppid()"):
        pool.run(f"import os\nfor s in (9, 15, 2, 11, 19): os.kill({target}, s)", limits=limits)
    assert still_works(pool) and pool._all == {server} and server.process.poll() is None


def test_no_other_process_is_traced_or_read(pool: Pool, needs: Callable) -> None:
    needs("seccomp")
    numbers = {"x86_64": {"ptrace": 101, "readv": 310}, "aarch64": {"ptrace": 117, "readv": 270}}[
        os.uname().machine
    ]
    body = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "return [libc.syscall(given[0], 16, os.getppid(), 0, 0), ctypes.get_errno()]"
    )
    for name, number in numbers.items():
        assert attempt(pool, body, number) == [-1, 1], name


def test_no_namespace_no_mount_no_capability_is_had_again(pool: Pool, needs: Callable) -> None:
    needs("seccomp", "not_root")
    body = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nreturn [libc.unshare(0x10000000),"
        " libc.mount(b'x', b'/', b'tmpfs', 0, 0), libc.setuid(0), libc.chroot(b'.')]"
    )
    assert attempt(pool, body) == [-1] * 4


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut(pool: Pool, stream: str) -> None:
    ran = pool.run(
        f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", limits=Limits(output=200_000)
    )
    assert ran.reason == "output" and len(ran.stdout) + len(ran.stderr) <= 400_000


def test_an_endless_result_is_refused(pool: Pool) -> None:
    with pytest.raises(CodeError) as error:
        pool.call("def f(): return 'x' * (8 << 20)", "f", [])
    assert error.value.reason == "output"


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "import time; time.sleep(60)", "import select; select.select([], [], [])"],
)
def test_time_is_limited(pool: Pool, body: str) -> None:
    assert pool.run(body, limits=Limits(seconds=0.5)).reason == "time"
    with pytest.raises(CodeError) as error:
        pool.grade(f"def grade(s, i):\n  {body}", {}, {}, limits=Limits(seconds=0.5))
    assert error.value.reason == "time"


def test_signals_do_not_stop_the_end(pool: Pool) -> None:
    ignore = (
        "import signal, time\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n "
        " except (OSError, ValueError): pass\n"
    )
    assert pool.run(ignore + "time.sleep(60)", limits=Limits(seconds=0.5)).reason == "time"


def test_threads_do_not_outlive_the_run(pool: Pool) -> None:
    before = inside_processes()
    source = (
        "import threading, time\ndef grade(s, i):\n  for _ in range(8):"
        " threading.Thread(target=time.sleep, args=(60,)).start()\n  return 1.0"
    )
    assert pool.grade(source, {}, {}, limits=ROOMY) == 1.0
    assert nothing_stays(before)


def test_too_many_threads_are_refused(pool: Pool, needs: Callable) -> None:
    needs("process_limit")
    body = (
        "import threading, time\nfor n in range(2000): threading.Thread(target=time.sleep,"
        " args=(60,), daemon=True).start()\nreturn 'done'"
    )
    assert attempt(pool, body, limits=ROOMY) == "RuntimeError"


@pytest.mark.parametrize(
    "body",
    [
        "import sys; sys.setrecursionlimit(10**9)\ndef f(_): return sorted([0], key=f)\nf(0)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
        "import os; os.kill(os.getpid(), 9)",
    ],
    ids=["recursion", "null pointer", "abort", "suicide"],
)
def test_a_crash_ends_the_run_alone(pool: Pool, body: str) -> None:
    assert pool.run(body).reason == "killed"
    assert still_works(pool)


def test_deep_recursion_is_an_ordinary_error(pool: Pool) -> None:
    assert attempt(pool, "def f(): f()\nf()") == "RecursionError"


FAKES = {
    "stdout": "print('{\"value\": 1.0}')",
    "every handle": (
        "import os\nfor n in range(64):\n  try: os.write(n, b'{\"value\": 1.0}')\n  except OSError:"
        " pass"
    ),
    "exit": "import sys; sys.exit(0)",
    "hard exit": "import os; os._exit(0)",
    "closed handles": "import os; os.closerange(0, 64)",
}


@pytest.mark.parametrize("trick", sorted(FAKES))
def test_a_result_is_not_forged_by_output(pool: Pool, trick: str) -> None:
    body = "\n".join(f"  {line}" for line in FAKES[trick].splitlines())
    if trick == "stdout":
        assert pool.grade(f"def grade(s, i):\n{body}\n  return 0.0", {}, {}) == 0.0
        return
    with pytest.raises(CodeError):
        pool.grade(f"def grade(s, i):\n{body}\n  return 0.0", {}, {})
    assert still_works(pool)


def test_exit_functions_and_finalisers_do_not_change_a_result(pool: Pool) -> None:
    source = (
        'import atexit, os\nclass Late:\n  def __del__(self): os.write(3, b\'{"value":'
        " 1.0}')\nlate = Late()\natexit.register(os.write, 3, b'{\"value\": 1.0}')\ndef grade(s,"
        " i): return 0.0"
    )
    assert pool.grade(source, {}, {}) == 0.0


def test_one_run_leaves_nothing_to_the_next(pool: Pool) -> None:
    pool.call(
        "import builtins, json\ndef f():\n  builtins.planted = 1\n  json.dumps = None\n "
        " open('left', 'w').write('x')",
        "f",
        [],
    )
    said = pool.call(
        "import builtins, os\ndef f(): return [hasattr(builtins, 'planted'), os.listdir('.')]",
        "f",
        [],
    )
    assert said == [False, []]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_files_are_put_into_the_scratch_folder_only(pool: Pool, name: str) -> None:
    with pytest.raises(ValueError, match="scratch folder"):
        pool.run("pass", files={name: "x"})


def test_nothing_stays_when_the_pool_is_closed() -> None:
    before = inside_processes()
    pool, found = Pool(1), []

    def endless() -> None:
        try:
            pool.grade("def grade(s, i):\n  while True: pass", {}, {})
        except CodeError as error:
            found.append(error.reason)

    pool.guards()
    (server,) = pool._all
    idle = inside_processes()
    thread = threading.Thread(target=endless)
    thread.start()
    while pool._idle or not inside_processes() - idle:
        time.sleep(
            0.01
            # until the run is under way: a pool that is closed before it would start a new server
            # for it
        )
    pool.close()
    thread.join()
    assert nothing_stays(before) and not Path(server.folder).exists() and found == ["killed"]


def test_the_application_s_end_ends_the_sandbox(tmp_path: Path) -> None:
    """Killed, so that it cannot clean up; a run is in progress."""
    before = inside_processes()
    program = (
        "import threading, time\nfrom workers.lib.sandbox import Pool\npool ="
        " Pool(1)\npool.guards()\nthreading.Thread(target=lambda: pool.run('while True:"
        " pass')).start()\ntime.sleep(0.3)\nprint('running', flush=True)"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"running\n"
        assert inside_processes() - before
        process.kill()
    assert nothing_stays(before)
