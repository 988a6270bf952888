"""Prompt search: GEPA proposes system prompts in a separate process; our worker scores them and
asks the reflecting model.
"""
