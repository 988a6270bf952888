"""The specs of the programs that run as child processes, a module for each program. The apps write
them, the programs read them (docs/jobs.md).

Tasks and verifiers stay JSON here: environments and `verifiers.build` check them.
"""
