"""`python limited.py BYTES PROGRAM spec.json`: runs a program of workers/ that gets so many bytes
more than the libraries take.
"""

from __future__ import annotations

import resource
import runpy
import sys
from pathlib import Path

import peft  # noqa: F401
import torch
import transformers  # noqa: F401

more, program, spec = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
torch.ones(64, 64, requires_grad=True).matmul(
    torch.ones(64, 64)
).sum().backward()  # starts its threads
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more,) * 2)
sys.argv = [program, spec]
runpy.run_module(f"workers.{program}", run_name="__main__")
