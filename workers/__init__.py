"""The ML side: evaluation and training as programs that know nothing of Django (docs/jobs.md)."""

import os

# How long a thread that waits for others spins before it sleeps. With as many threads as cores, long spinning (libgomp's
# own choice) takes the core from the thread that is waited for as soon as anything else runs: two such programs side by
# side were 15 times slower. Without any, a lone program loses 40% of its generation to waking threads up. It is read
# when torch is loaded, so it stands before every import of it.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
