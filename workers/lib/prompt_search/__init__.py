"""Prompt search: GEPA proposes system prompts in a process of its own, our worker scores them and asks the reflecting model."""
