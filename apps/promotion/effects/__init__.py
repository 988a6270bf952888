"""The effect of a promotion: production before and after it, what else changed, what the version
cost and what it saves.
"""
