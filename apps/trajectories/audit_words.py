"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "trajectories",
    {
        "trajectory.deleted": "deleted the trajectory {external_id}",
        "trajectory.feedback": "set the outcome of {=a trajectory@} to {outcome}",
        "trajectories.mapping_saved": "saved the import mapping “{name}”",
        "trajectories.mapping_deleted": "deleted the import mapping “{name}”",
        "trajectories.deleted": "deleted {n|trajectory|trajectories}",
        "trajectories.deleted_again": (
            "deleted {n|trajectory|trajectories} again, which a restored backup had brought back"
        ),
        "datadeletion.finished": (
            "deleted {what}: {runs|run|runs}[; models that learned from it: {learned}]"
        ),
        "trajectories.tag": "tagged {n|trajectory|trajectories} “{value}”",
        "trajectories.untag": "removed the tag “{value}” from {n|trajectory|trajectories}",
        "trajectories.outcome": "set the outcome of {n|trajectory|trajectories} to {value}",
        "trajectories.undone": (
            "undid a change of {n|trajectory|trajectories} ({kind}[ “{value}”])"
        ),
        "arrival.retried": "retried a batch of trajectories that had failed with “{problem}”",
        "arrival.discarded": (
            "discarded a batch of {n|trajectory|trajectories} that had failed with “{problem}”"
        ),
        "trace.retried": "retried a trace that had failed with “{problem}”",
        "trace.discarded": "discarded a trace that had failed with “{problem}”",
        "view.saved": "saved the view “{name}”[ for everyone{?shared}]",
        "view.deleted": "deleted the view “{name}”",
        "redaction.switched": "changed the built-in redaction rules to: {on}",
        "redaction.presidio_on": (
            "turned on Presidio for {entities} (language {language}, score {score}, model"
            " {model}); the rules are version {version}"
        ),
        "redaction.presidio_off": (
            "turned off Presidio[ while {waiting|batch|batches} waited for it{?waiting}]; the"
            " rules are version {version}"
        ),
        "held.retried": "retried {n|batch|batches} set aside before storage",
        "held.discarded": "discarded {n|batch|batches} set aside before storage",
        "redaction.added": "added the redaction rule “{name}”",
        "redaction.changed": "changed the redaction rule “{name}”",
        "redaction.enabled": "enabled the redaction rule “{name}”",
        "redaction.disabled": "disabled the redaction rule “{name}”",
        "redaction.moved": "moved the redaction rule “{name}” to position {position}",
        "redaction.deleted": "deleted the redaction rule “{name}”",
        "retention.set": (
            "set retention[ to {days|day|days}][ to unlimited{!days}][; it was {before|day|days}]"
        ),
        "retention.enforced": (
            "deleted {removed|trajectory|trajectories} older than {days|day|days} (retention)"
        ),
    },
    jobs={
        "upload": "the import",
        "parquetexport": "",
        "datadeletion": "",
    },
)
