"""The rules that `classify` runs. Pure: no Django, no torch.

reading   a trajectory as the rules see it
expected  what would have been right, where it is known, and where the run left it
words     what is said, in words: claims, corrections, refusals
checks    the rules, each with its evidence
findings  what they give
"""
