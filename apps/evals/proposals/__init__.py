"""Tasks that Flywheel proposes from failures. They count nowhere until a person confirms them: a
proposal is no row of `Task`, so nothing that reads tasks can see one.
"""
