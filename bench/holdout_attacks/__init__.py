"""Attacks on the hold-out by somebody who had not read its code: `python -m
bench.holdout_attacks`.
"""
