"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "rewards",
    {
        "review.opened": "opened {=a reward review@} of {verifier} with {n|output|outputs}",
        "review.outputs_sent": ("sent {n|output|outputs} of a training run to {=a reward review@}"),
        "review.judged": "judged {=an output@} [a success{?success}][a failure{!success}]",
        "review.answered": "[agreed{?agrees}][disagreed{!agrees}] with a score[: “{reason}”]",
        "review.undone": "withdrew a verdict in a reward review",
        "review.ruled": (
            "ruled {=an output@} [a success{?success}][a failure{!success}][: “{reason}”]"
        ),
        "review.lock_overridden": "overrode the training lock of {verifier@}[: “{reason}”]",
        "review.policy_proposed": (
            "proposed a change of the review policy: a second person decides[: “{reason}”]"
        ),
        "review.policy_withdrawn": (
            "withdrew the proposed change of the review policy[: “{reason}”]"
        ),
        "review.policy_changed": (
            "changed the review policy[, proposed by {proposed_by}][: “{reason}”]"
        ),
        "review.held_out_exported": (
            "exported {n|judged held-out output|judged held-out outputs} of {=a reward review@}"
        ),
        "probes.waived": (
            "waived {findings|finding|findings} of the probe “{probe}” for {verifier} ({=probe"
            " run@})[: “{reason}”]"
        ),
    },
    jobs={
        "proberun": "",
        "rescore": "",
    },
)
