"""The sandbox in ordinary use, and where the machine allows less: without namespaces, without
Landlock, not as root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workers.lib.sandbox import CodeError, Limits, Pool, SandboxError
from workers.lib.sandbox.server import (
    INSIDE,
    Strength,
    command,
    refuse_if_weak,
    strength,
    strength_here,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def test_a_program_gets_its_input_and_files_and_gives_its_output(pool: Pool) -> None:
    program = (
        "import sys, pathlib\nprint(input(), pathlib.Path('a/b.txt').read_text())\nprint('no',"
        " file=sys.stderr)\nsys.exit(3)"
    )
    ran = pool.run(program, stdin="yes\n", files={"a/b.txt": "Grüße"})
    assert (ran.exit_code, ran.stdout, ran.stderr, ran.reason) == (3, "yes Grüße\n", "no\n", "ok")


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [
        ("pass", 0, "ok"),
        ("1/0", 1, "ok"),
        ("raise SystemExit", 0, "ok"),
        ("raise SystemExit('x')", 1, "ok"),
        ("def", 1, "ok"),
        ("import os; os._exit(7)", 7, "ok"),
        ("import os; os.fork()", 1, "processes"),
        ("x = 'x' * 10**12", 1, "memory"),
    ],
)
def test_how_a_program_ended(pool: Pool, program: str, code: int, reason: str) -> None:
    ran = pool.run(program)
    assert (ran.exit_code, ran.reason) == (code, reason)


def test_a_program_s_threads_and_exit_functions_run_to_their_end(pool: Pool) -> None:
    program = (
        "import atexit, threading, time\natexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"
    )
    assert pool.run(program).stdout == "main\nthread\nexit\n"


def test_processes_that_are_allowed_run(pool: Pool) -> None:
    program = (
        "import os\npid = os.fork()\nif pid == 0:"
        " os._exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert pool.run(program, limits=Limits(processes=2)).stdout == "5\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def grade(s, i): return 'high'", "value"),
        ("def grade(s, i): return float('nan')", "value"),
        ("def grade(s, i): return True", "value"),
        ("def grade(s, i): return None", "value"),
        ("x = 1", "exception"),
        ("def grade(s): return 1", "exception"),
        ("def grade(s, i): raise SystemExit(0)", "exception"),
        ("grade = 1", "exception"),
        ("def grade(s, i): return {1, 2}", "exception"),
        ("def", "exception"),
        ("def grade(s, i): import os; os._exit(0)", "forged"),
    ],
)
def test_a_grader_that_gives_no_number_is_an_error(pool: Pool, source: str, reason: str) -> None:
    with pytest.raises(CodeError) as error:
        pool.grade(source, {}, {})
    assert error.value.reason == reason


def test_many_threads_share_a_pool(pool: Pool) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(
            lambda n: pool.grade("def grade(s, i): return s['n'] * 2", {"n": n}, {}), range(40)
        )
        assert list(found) == [n * 2.0 for n in range(40)]


def test_a_killed_server_is_replaced(pool: Pool) -> None:
    pool.guards()
    for server in list(pool._all):
        server.process.kill()
        server.process.wait()
    assert [pool.grade("def grade(s, i): return 1", {}, {}) for _ in range(3)] == [1.0] * 3


@pytest.mark.parametrize(
    ("guards", "sentence"),
    [
        ({"network": False, "files": True}, "shut off network"),
        ({"network": True, "files": False}, "shut off files"),
        ({}, "shut off network and files"),
        ({"network": True, "files": True, "landlock": True, "seccomp": True}, "only seccomp"),
    ],
)
def test_it_refuses_where_it_would_be_weak(
    monkeypatch: pytest.MonkeyPatch, guards: dict[str, bool], sentence: str
) -> None:
    with pytest.raises(SandboxError, match=sentence):
        refuse_if_weak(guards)
    monkeypatch.setenv("FLYWHEEL_SANDBOX_WEAK", "1")
    refuse_if_weak(guards)
    assert strength(guards).accepted


def test_one_layer_is_a_mode_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one_layer = {"network": True, "files": True, "landlock": True, "seccomp": True}
    monkeypatch.setenv("FLYWHEEL_SANDBOX_WEAK", "namespaces")
    refuse_if_weak(one_layer)
    assert "seccomp and Landlock alone" in strength(one_layer).accepted
    with pytest.raises(SandboxError, match="shut off files"):
        refuse_if_weak(one_layer | {"files": False})
    whole = one_layer | {"mount_namespace": True, "network_namespace": True}
    assert strength(whole) == Strength()


def test_a_machine_without_namespaces_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Ubuntu's AppArmor and containers have it: unshare is refused to the real server."""
    start = crippled(monkeypatch, tmp_path, "unshare")
    start.close()
    wrapped = command(str(tmp_path))
    monkeypatch.setattr("workers.lib.sandbox.server.command", lambda folder: wrapped)
    monkeypatch.delenv("FLYWHEEL_SANDBOX_COMMAND")
    assert "does not allow namespaces" in strength_here().refuses
    with pytest.raises(SandboxError, match="does not allow namespaces"):
        Pool(1).run("print(1)")
    monkeypatch.setenv("FLYWHEEL_SANDBOX_WEAK", "namespaces")
    assert "seccomp and Landlock alone" in strength_here().accepted
    pool = Pool(1)
    assert pool.run("print(1)").stdout == "1\n"
    pool.close()


def test_a_command_that_does_not_start_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_SANDBOX_COMMAND", "/bin/false")
    with pytest.raises(SandboxError, match="did not start"):
        Pool(1).guards()


WITHOUT = """
import ctypes, errno, os, struct, sys
sys.path.insert(0, {inside!r})
import kernel, seccomp
names = {names!r}
side = list(seccomp.ARCHES).index(kernel.MACHINE)
numbers = [(seccomp.FORBIDDEN | {{"landlock_create_ruleset": (444, 444)}})[name][side] for name in \
names]
code = seccomp._step(seccomp.LOAD, 0) + b"".join(seccomp._when(number, seccomp._refuse()) for \
number in numbers)
code += seccomp._step(seccomp.RETURN, seccomp.ALLOW)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
held = ctypes.create_string_buffer(code, len(code))
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(Program(len(code) // 8, ctypes.cast(held, \
ctypes.c_void_p))))
os.execv({python!r}, [{python!r}, *sys.argv[2:]])
"""


def crippled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str) -> Pool:
    """A pool on a machine that refuses these system calls, as a container's own filter does."""
    script = tmp_path / "without.py"
    script.write_text(WITHOUT.format(inside=str(INSIDE), names=names, python=sys.executable))
    monkeypatch.setenv("FLYWHEEL_SANDBOX_COMMAND", shlex.join([sys.executable, str(script)]))
    return Pool(1)


READ = (
    "def f(path):\n  try: return open(path).read()\n  except OSError as error: return"
    " type(error).__name__"
)
FORK = (
    "import os\ndef f():\n  try: return os.fork()\n  except OSError as error: return"
    " type(error).__name__"
)
CONNECT = (
    "import socket\ndef f():\n  try: return socket.socket().fileno()\n  except OSError as error:"
    " return type(error).__name__"
)


def test_without_namespaces_landlock_and_seccomp_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = crippled(monkeypatch, tmp_path, "unshare")
    try:
        guards = pool.guards()
        assert not any(guards[name] for name in guards if name.endswith("_namespace"))
        if not (guards["landlock"] and guards["seccomp"]):
            pytest.skip("this machine lacks: landlock or seccomp")
        secret = tmp_path / "secret"
        secret.write_text("planted")
        for path in (
            str(secret),
            "/etc/passwd",
            f"/proc/{os.getpid()}/environ",
            "/proc/self/environ",
        ):
            assert pool.call(READ, "f", [path]) in ("PermissionError", "FileNotFoundError"), path
        assert pool.call(FORK, "f", []) == pool.call(CONNECT, "f", []) == "PermissionError"
        assert (
            pool.run(
                "import os, pathlib\npathlib.Path('x').write_text('1')\nprint(os.listdir('.'))"
            ).stdout
            == "['x']\n"
        )
        assert pool.run("while True: pass", limits=Limits(seconds=0.5)).reason == "time"
    finally:
        pool.close()


def test_without_landlock_too_it_reports_that_files_are_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = crippled(monkeypatch, tmp_path, "unshare", "landlock_create_ruleset")
    try:
        guards = pool.guards()
        assert not guards["landlock"] and not guards["files"]
        monkeypatch.delenv("FLYWHEEL_SANDBOX_COMMAND")
        with pytest.raises(SandboxError, match="shut off files"):
            refuse_if_weak(guards)
    finally:
        pool.close()


def test_as_another_user_than_root_it_holds_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A user namespace in place of root's rights. Needs a Python that everybody may read."""
    python, setpriv = "/usr/bin/python3", shutil.which("setpriv")
    if os.geteuid() != 0 or not Path(python).exists() or not setpriv:
        pytest.skip("needs root, setpriv and /usr/bin/python3")
    inside = Path("/var/tmp") / f"sandbox-inside-{os.getpid()}"
    shutil.copytree(INSIDE, inside, ignore=shutil.ignore_patterns("__pycache__"))
    script = inside / "start.sh"
    script.write_text(
        f"#!/bin/sh\nexec {setpriv} --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all"
        f" {python} -I -S {inside}\n"
    )
    for path in (inside, script):
        path.chmod(0o755)
    monkeypatch.setenv("FLYWHEEL_SANDBOX_COMMAND", str(script))
    pool = Pool(1)
    try:
        guards = pool.guards()
        if not guards["user_namespace"]:
            pytest.skip("this machine lacks: user namespaces for everybody")
        assert (
            guards["mount_namespace"]
            and guards["process_limit"]
            and guards["no_capabilities"]
            and guards["not_root"]
        )
        for path in ("/etc/passwd", str(Path(__file__)), "/proc/self/environ"):
            assert pool.call(READ, "f", [path]) == "FileNotFoundError", path
        assert pool.call(CONNECT, "f", []) == "PermissionError"
    finally:
        pool.close()
        shutil.rmtree(inside)


def test_packages_of_the_operator_can_be_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "planted_package.py").write_text("value = 0.75")
    monkeypatch.setenv("FLYWHEEL_SANDBOX_PACKAGES", str(tmp_path))
    tmp_path.chmod(0o755)
    pool = Pool(1)
    try:
        assert (
            pool.grade(
                "import planted_package\ndef grade(s, i): return planted_package.value", {}, {}
            )
            == 0.75
        )
        with pytest.raises(CodeError):
            pool.call(f"def f(): open({str(tmp_path / 'x')!r}, 'w')", "f", [])
    finally:
        pool.close()
