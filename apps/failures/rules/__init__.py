"""The rules that `classify` runs. Pure: no Django, no torch.

reading   a trajectory as the rules see it
expected  the correct calls, if known, and where the run deviated from them
words     what is said, in words: claims, corrections, refusals
errors    whether a tool's reply says that the call failed, by its structure or its first line
checks    the rules, each with its evidence
findings  the results
"""
