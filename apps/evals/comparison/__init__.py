"""Any number of evaluations of the same tasks: measures, paired differences, groups of tasks, failure modes, task by task."""
