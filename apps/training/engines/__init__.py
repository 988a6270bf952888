"""Training in other engines: a run's plan as a folder that runs there, its results, and jobs on a
Ray cluster.
"""
