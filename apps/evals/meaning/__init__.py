"""The optional semantic check: finds tasks that could train and paraphrase a held-out one. See
docs/evals.md.
"""
