"""A seccomp-bpf filter that makes the kernel reject system calls which a grader does not need. See
seccomp(2), bpf(4).

It is a deny list with a ceiling: calls newer than those known here appear not to exist (ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import struct

from kernel import MACHINE, PR_SET_SECCOMP, prctl

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, JUMP_EQ, JUMP_GE, JUMP_SET, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCH, ARGUMENTS = (
    0,
    4,
    16,
)  # offsets in struct seccomp_data; an argument has 8 bytes, the low half first
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CEILING = 451  # cachestat: from this number on, all calls are rejected
CLONE_THREAD, CLONE_NEW = 0x00010000, 0x7E020080
AF_UNIX, SOCK_STREAM = 1, 1

# name: (x86-64, aarch64); None if there is no such call
FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "listen": (50, 201),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "seccomp": (317, 277),
    "capset": (126, 91),
    "personality": (135, 92),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
PROCESSES = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
OTHERS = {  # decided by an argument
    "clone": (56, 220),
    "clone3": (435, 435),
    "socketpair": (53, 199),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
}
PR_SET_NAME = 15


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value & 0xFFFFFFFF)


def _refuse(code: int = errno.EPERM) -> bytes:
    return _step(RETURN, ERRNO | code)


def _argument(index: int) -> bytes:
    return _step(LOAD, ARGUMENTS + 8 * index)


def _only(index: int, *values: int) -> bytes:
    """Allow the call if and only if the low half of an argument is one of the values."""
    tests = b"".join(_step(JUMP_EQ, value, yes=len(values) - at) for at, value in enumerate(values))
    return _argument(index) + tests + _refuse() + _step(RETURN, ALLOW)


def _when(number: int | None, body: bytes) -> bytes:
    """`body`, which must end with a return, for one system call. The accumulator holds the call's
    number before and after.
    """
    return b"" if number is None else _step(JUMP_EQ, number, no=len(body) // 8) + body


def _clone(processes: bool) -> bytes:
    """Allow threads, other processes only if `processes`, and no namespaces."""
    allowed = _step(RETURN, ALLOW)
    if not processes:
        return _argument(0) + _step(JUMP_SET, CLONE_THREAD, no=1) + allowed + _refuse()
    return _argument(0) + _step(JUMP_SET, CLONE_NEW & ~0x80, yes=1) + allowed + _refuse()


def _socketpair() -> bytes:
    """Allow only connected stream pairs: asyncio needs one, and they lead nowhere."""
    return (
        _argument(0)
        + _step(JUMP_EQ, AF_UNIX, yes=1)
        + _refuse()
        + _argument(1)
        + _step(AND, 0xFF)
        + _step(JUMP_EQ, SOCK_STREAM, yes=1)
        + _refuse()
        + _step(RETURN, ALLOW)
    )


def program(own_pid: int, processes: bool) -> bytes:
    """The filter as BPF instructions of 8 bytes. Signals may only be sent to `own_pid`, unless
    `processes` are allowed.

    Raises OSError on a machine whose system call numbers are unknown.
    """
    if MACHINE not in ARCHES:
        raise OSError(f"no seccomp filter for {MACHINE}")
    side = list(ARCHES).index(MACHINE)
    number = {name: both[side] for name, both in (FORBIDDEN | PROCESSES | OTHERS).items()}
    names = list(FORBIDDEN) + ([] if processes else list(PROCESSES))
    parts = [
        _step(LOAD, ARCH),
        _step(JUMP_EQ, ARCHES[MACHINE], yes=1),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        _step(JUMP_GE, CEILING, no=1),
        _refuse(errno.ENOSYS),  # the x32 calls are above it, too
        *(_when(number[name], _refuse()) for name in names),
        # Its flags are in memory, where the filter cannot see them; libc then falls back to clone.
        _when(number["clone3"], _refuse(errno.ENOSYS)),
        _when(number["clone"], _clone(processes)),
        _when(number["socketpair"], _socketpair()),
        _when(number["prctl"], _only(0, PR_SET_NAME)),
        _when(number["prlimit64"], _only(0, 0, own_pid)),
    ]
    if not processes:
        parts += [
            _when(number["kill"], _only(0, own_pid)),
            _when(number["tgkill"], _only(0, own_pid)),
        ]
    return b"".join([*parts, _step(RETURN, ALLOW)])


def install(own_pid: int, processes: bool) -> None:
    """Install the filter in this process for good; needs no_new_privs. Raises OSError if the kernel
    does not allow it.
    """
    code = program(own_pid, processes)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    holder = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(holder))
