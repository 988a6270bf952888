"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "training",
    {
        "trainingrun.submitted": "started the training run {name@}[. {oversight}]",
        "trainingrun.resumed": (
            "resumed the training run {name@}[ from step {step}][. {oversight}]"
        ),
        "training.exported": "exported {name@} for {engine}",
        "training.imported": (
            "imported the result of {name@}, trained in {engine}[, as {model_version}]"
        ),
        "dataset.frozen": "froze a training set of {size|task|tasks}[, chosen from {of}]",
    },
    jobs={
        "trainingrun": "the training run",
        "measurement": "",
        "promptsearch": "",
    },
)
