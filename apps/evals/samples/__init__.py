"""The samples of an evaluation, as people and programs read them.

transcript    what was said: the conversation, the tools, what was expected against what was
answered components    what the verifier gave, each component with its reason diagnosis     the
failure mode, by the rules that classify production filters       which samples a URL asks for, and
its pages comparison    several evaluations of the same tasks, task by task distributions latency,
tokens and money exporting     samples as files to_tasks      failed samples as new tasks
"""
