"""Deleting the data that filters match, or everything about a person: what is wanted (`wanted`),
what that would be (`preview`), and the job that does it (`job`).
"""
