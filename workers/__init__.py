"""The ML side: evaluation and training as programs that do not depend on Django (docs/jobs.md)."""

import os

from workers.lib.garbage import put_off_garbage_collection

# How long a waiting OpenMP thread spins before it sleeps. With as many threads as cores, libgomp's
# long default takes the core away from the thread it waits for as soon as anything else runs: two
# such programs side by side were 15 times slower. Without any spinning, a lone program loses 40% of
# its generation speed to waking up threads. The variable is read when torch is loaded, so it is set
# before torch can be imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

put_off_garbage_collection()
