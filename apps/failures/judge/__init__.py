"""The judge: a second layer that classifies failures by asking a language model. Off unless a
rubric is enabled.
"""
