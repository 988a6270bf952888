"""The optional semantic check: which tasks that could train say what a held-out one says, in other words. See docs/evals.md."""
