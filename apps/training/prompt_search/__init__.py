"""Searches for a better prompt with GEPA, as a job (docs/prompt-search.md)."""
