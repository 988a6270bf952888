"""From single failures to groups that stay the same from run to run. All but `store` is pure: no Django, no torch.

cases       a failure as a light record, and its text without what differs by chance (numbers, ids, dates)
records     that record from a trajectory and its diagnosis
features    hashed TF-IDF vectors: no vocabulary, so that vectors of two runs can be compared
find        the groups
names       what to call a group
signatures  what is kept of a group, and to which group a new failure belongs by it
identity    which group of today is which group of yesterday
life        new, triaged, in evals, fixed, reopened
store       the clusters of a project in the database
"""
