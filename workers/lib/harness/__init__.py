"""Rollouts of agents that are not ours: each has an address of its own, at which it finds the model
in training and the environment's tools. Light: no torch.
"""
