"""The ML side: evaluation and training as programs that know nothing of Django (docs/jobs.md)."""
