"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "models",
    {
        "model_version.downloaded": "downloaded the files of the model {name@}",
        "model_version.created": "registered the model {name@}",
        "model_version.moved": "moved the base model {name@} from {before} to {after}",
        "server.added": "added the server {name}[ at {base_url}][, serving {serves}]",
    },
    jobs={
        "serverprobe": "",
        "serverrun": "",
        "mergejob": "",
    },
)
