"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "models",
    {
        "gate.reported": (
            "compared {candidate} with {baseline}: the {=gate report@} says {verdict}"
        ),
        "gate.outputs_reviewed": (
            "reviewed {n|output|outputs} of {candidate} with a new kind of unsafe action, listed"
            " in {=a gate report@}: {decision}[: “{reason}”]"
        ),
        "channel.initial": (
            "recorded {version@registry.modelversion:version_id} as live in {channel@}"
        ),
        "channel.policy_proposed": (
            "proposed a change of who may promote to {channel@}: a second person decides[:"
            " “{reason}”]"
        ),
        "channel.policy_withdrawn": (
            "withdrew the proposed change of who may promote to {channel@}[: “{reason}”]"
        ),
        "channel.policy_changed": (
            "saved version {version} of the policy of {channel@}[, proposed by {proposed_by}][:"
            " “{reason}”]"
        ),
        "channel.target_added": "added the {kind} {name} to the targets of {channel@}",
        "channel.target_removed": "removed {name} from the targets of {channel@}",
        "trial.started": (
            "started the {kind} of {version} in {channel@} at {share} of the sessions[: “{reason}”]"
        ),
        "trial.advanced": (
            "moved the {kind} of {version} in {channel@} to {share} of the sessions[: {reason}]"
        ),
        "trial.passed": (
            "completed the last step of the {kind} of {version} in {channel@}[: {reason}]"
        ),
        "trial.ended": "ended the {kind} of {version} in {channel@}: it {ending}[: {reason}]",
        "deployment.failed": "marked the deployment “{name}” as failed[: {reason}]",
        "deployment.stopped": "stopped the deployment “{name}”[: {reason}]",
        "deployment.restored": (
            "reloaded the live version after the deployment “{name}”[: {reason}]"
        ),
    },
    jobs={
        "deployment": "",
        "fingerprintjob": "",
    },
)
