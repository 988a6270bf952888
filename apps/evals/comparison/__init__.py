"""A comparison of any number of evaluations of the same tasks: measures, paired differences,
groups, failure modes, and each task.
"""
