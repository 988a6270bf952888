"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "failures",
    {
        "failure.decided": "triaged {=a failure@}[ as {after.mode}]",
        "failure.split": "added a second mode to {=a failure@}",
        "failure.assigned": "assigned {=a failure@}",
        "failure.replayed": (
            "found by replay that step #{message} decided {=a failure@}[; a person’s choice of the"
            " step stayed{?kept}]"
        ),
        "failure.marked": "marked {=a run@} as a failure[: {after.mode}]",
        "failure.checked": "dismissed {=a failure@}: by a check, the run went well",
        "failure.reopened": "reopened {=a failure@}: the answer to its check was undone or changed",
        "failure.undone": (
            "undid the triage of {n|failure|failures}[; {kept} changed in the meantime and stayed"
            " as {kept||it is|they are}]"
        ),
        "failures.decided": "triaged several failures: {did}",
        "failures.assigned": "assigned several failures: {did}",
        "failures.classified": "classified {looked|run|runs} and found {found|failure|failures}",
        "outcome_model.made": (
            "trained the failure estimate (version {number}) on {decisions|reviewed run|reviewed"
            " runs}"
        ),
        "outcome_model.switched_off": (
            "switched off the failure estimate (version {number}): too many false alarms"
        ),
        "outcome.checked": "reviewed {=a run@} drawn for a check: {answer}",
        "outcome.unchecked": "undid the review of {=a run@} drawn for a check",
        "outcome.share_set": "set the share of runs drawn for a check to {percent}%",
        "judge.share_set": (
            "set the share of runs that the judge reviews to {unflagged}%, and {flagged}% of those"
            " that the rules flag[; all of the first {first} runs]"
        ),
        "failure_mode.added": (
            "added the failure mode “{name}”[, relevant to safety{?safety_relevant}]"
        ),
        "failure_mode.changed": "changed the failure mode “{name}”",
        "failure_mode.deleted": "deleted the failure mode “{name}”",
        "cluster.reopened": "reopened the cluster {name@}, which was fixed in {fixed_in}: {why}",
        "reclassification.discarded": "discarded {=a reclassification@}",
        "rubric.saved": "saved version {version} of the judge's rubric",
        "rubric.switched": (
            "switched the judge [on, with version {version} of the rubric{?on}][off{!on}]"
        ),
        "rubric.tried": "tried a rubric of the judge on a trajectory, which cost {cost_usd} USD",
        "failures.unassigned": "unassigned {n|case|cases} from {user}, who can no longer triage",
    },
    jobs={
        "classification": "",
        "reclassification": "",
        "outcometraining": "",
        "judgemeasurement": "the comparison of judges",
        "rubricsearch": "the search for a better rubric",
    },
)
