"""The rules that `classify` runs. Pure: no Django, no torch.

protocols  who speaks in each message, and calls that are written as text
reading    a trajectory as the rules see it
expected   the correct calls, if known, and where the run deviated from them
ratings    ratings in the forms that machines write
policy     rules of prompts that people confirmed
checks     the rules, each with its evidence
findings   the results
"""
