"""The ML side: evaluation and training as programs that know nothing of Django (docs/jobs.md)."""

import os

# Threads that wait for others sleep instead of spinning. With as many threads as cores, spinning takes the core from
# the thread that is waited for as soon as anything else runs: two such programs side by side were 15 times slower.
# It is read when torch is loaded, so it stands before every import of it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
