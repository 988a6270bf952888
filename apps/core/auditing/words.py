"""The audit log in sentences: the one place that says an action in words, besides the
declarations of operations. An action without a sentence fails the tests.

A sentence goes on after who did it. `{name}` is a value of the event's detail; `{name@}` links it
to the target, `{=words@}` links these words; `{n|task|tasks}` counts ("1 task", "2 tasks"),
`{n||task|tasks}` only says the noun; `{name@registry.modelversion:id}` links to the object whose id
is the value `id`. A part in [brackets] is left out where one of its values is missing or false;
`{?name}` and `{!name}` only ask for that, and show nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.urls import NoReverseMatch, reverse

from apps.core.models import AuditEvent


class Section(NamedTuple):
    """The sentences of one kind of action, by which the log is filtered. All actions of a prefix
    (`comment.…`) are in one section.

    `jobs`: what a job is called in a sentence, before its name; empty where its name says it:
    “Merge of support-v3”.
    """

    label: str
    sentences: dict[str, str]
    jobs: dict[str, str] = {}


PEOPLE = {
    "login.failed": "failed to log in[ from {address}]",
    "login.locked": "failed to log in too often[ from {address}]; locked[ until {until}]",
    "login.unlocked": "unlocked the account {username}",
    "account.password_changed": "changed their password[ from {address}]",
    "account.password_set": "set a password[ from {address}]",
    "account.password_reset": "reset their password by e-mail[ from {address}]",
    "account.email_changed": "changed their e-mail address[ from {address}]",
    "account.second_factor_added": "added a second factor[ ({kind})][ from {address}]",
    "account.second_factor_removed": "removed a second factor[ ({kind})][ from {address}]",
    "account.recovery_codes_made": "created new recovery codes[ from {address}]",
    "account.sign_in_connected": "connected a sign-in provider[ from {address}]",
    "account.sign_in_removed": "disconnected a sign-in provider[ from {address}]",
    "api_key.created": (
        "created the API key {name@} with the {scopes||scope|scopes} {scopes}[, valid until"
        " {expires_at}][, with access to hold-outs{?may_see_holdout}]"
    ),
    "api_key.limited": (
        "limited the API key {name@} at the endpoint[ to {requests_per_minute} requests per"
        " minute][, {tokens_per_minute} tokens per minute][, {at_once} answers at a time]"
    ),
    "api_key.rotated": (
        "rotated the API key {name@}[; the old one works until {until}][; the old one stopped at"
        " once{!until}]"
    ),
    "api_key.revoked": "revoked the API key {name@}",
    "api_key.refused": (
        "was refused[ {refused|time|times}][ from {address}][; locked until {until}]"
    ),
    "invitation.created": "invited {email} as {role}",
    "invitation.accepted": (
        "accepted the invitation of {email}[ from {invited_by}] and joined as {role}"
    ),
    "invitation.revoked": "revoked the invitation of {email}",
    "member.set": "gave {user} the role {role}[ (was {was})]",
    "member.removed": "removed {user} from the project",
}
PROJECT = {
    "project.created": "created the project[ {name}]",
    "project.renamed": "renamed the project “{before}” to “{name}”[ ({slug})]",
    "project.archived": "archived the project",
    "project.unarchived": "unarchived the project",
    "project.deletion_started": "started the deletion of the project",
    "project.deleted": "deleted the project {name} with {rows|row|rows}",
    "object.renamed": "renamed {noun} “{before}” to {name@}",
    "object.archived": "archived {noun} {name@}",
    "object.unarchived": "unarchived {noun} {name@}[ by moving the channel {channel} to it]",
    "object.deleted": "deleted {noun} {name}",
    "dashboard.created": "created the dashboard {name@}",
    "dashboard.renamed": "renamed the dashboard “{before}” to {name@}",
    "dashboard.deleted": "deleted the dashboard “{name}”",
    "chart.added": "added the chart “{chart}” to the dashboard {dashboard@}",
    "chart.changed": "changed the chart “{chart}” of the dashboard {dashboard@}",
    "chart.moved": "moved the chart “{chart}” of the dashboard {dashboard@}",
    "chart.deleted": "deleted the chart “{chart}” of the dashboard {dashboard@}",
}
TRAJECTORIES = {
    "trajectory.deleted": "deleted the trajectory {external_id}",
    "trajectory.feedback": "set the outcome of {=a trajectory@} to {outcome}",
    "trajectories.mapping_saved": "saved the import mapping “{name}”",
    "trajectories.mapping_deleted": "deleted the import mapping “{name}”",
    "trajectories.deleted": "deleted {n|trajectory|trajectories}",
    "trajectories.tag": "tagged {n|trajectory|trajectories} “{value}”",
    "trajectories.untag": "removed the tag “{value}” from {n|trajectory|trajectories}",
    "trajectories.outcome": "set the outcome of {n|trajectory|trajectories} to {value}",
    "trajectories.undone": "undid a change of {n|trajectory|trajectories} ({kind}[ “{value}”])",
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
        "turned on Presidio for {entities} (language {language}, score {score}, model {model}); the"
        " rules are version {version}"
    ),
    "redaction.presidio_off": (
        "turned off Presidio[ while {waiting|batch|batches} waited for it{?waiting}]; the rules are"
        " version {version}"
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
}
FAILURES = {
    "failure.decided": "triaged {=a failure@}[ as {after.mode}]",
    "failure.split": "added a second mode to {=a failure@}",
    "failure.assigned": "assigned {=a failure@}",
    "failure.marked": "marked {=a run@} as a failure[: {after.mode}]",
    "failure.undone": (
        "undid the triage of {n|failure|failures}[; {kept} changed in the meantime and stayed as"
        " {kept||it is|they are}]"
    ),
    "failures.decided": "triaged several failures: {did}",
    "failures.assigned": "assigned several failures: {did}",
    "failures.classified": "classified {looked|run|runs} and found {found|failure|failures}",
    "outcome_model.made": (
        "trained the failure estimate (version {number}) on {decisions|reviewed run|reviewed runs}"
    ),
    "outcome.checked": "reviewed {=a run@} drawn for a check: {answer}",
    "outcome.unchecked": "undid the review of {=a run@} drawn for a check",
    "policy_rule.confirmed": "confirmed the policy rule “{sentence}”",
    "policy_rule.dismissed": "dismissed the policy rule “{sentence}”",
    "policy_rule.proposed": "undid the decision on the policy rule “{sentence}”",
    "policy_rule.written": "wrote the policy rule “{sentence}”",
    "policy_rule.edited": "edited a policy rule: version {version} is “{sentence}”",
    "policy_rule.removed": "removed the policy rule “{sentence}”",
    "outcome.share_set": "set the share of runs drawn for a check to {percent}%",
    "failure_mode.added": "added the failure mode “{name}”[, relevant to safety{?safety_relevant}]",
    "failure_mode.changed": "changed the failure mode “{name}”",
    "failure_mode.deleted": "deleted the failure mode “{name}”",
    "cluster.renamed": "renamed the cluster “{before}” to {after@}",
    "cluster.moved": "moved {=a cluster@} from {before} to {after}[, fixed in {version}][: {why}]",
    "cluster.reopened": (
        "reopened the cluster {name@}: it was fixed in {fixed_in} and failed again at {failed_at}"
    ),
    "reclassification.discarded": "discarded {=a reclassification@}",
    "rubric.saved": "saved version {version} of the judge's rubric",
    "rubric.switched": (
        "switched the judge [on, with version {version} of the rubric{?on}][off{!on}]"
    ),
    "rubric.tried": "started a trial of the judge's rubric on a trajectory",
    "rubric.try_ended": "finished a trial of the judge's rubric, which cost {paid_usd} USD",
    "failures.unassigned": "unassigned {n|case|cases} from {user}, who can no longer triage",
}
TEAMWORK = {
    "comment.added": "commented on {what@}",
    "comment.edited": "edited a comment on {what@}",
    "comment.deleted": "deleted a comment on {what@}",
    "assignment.made": "assigned {what@} to {user}",
    "assignment.ended": "unassigned {user} from {what@}",
    "assignments.ended": "removed {n|assignment|assignments} of {user}",
}
EVALS = {
    "eval_set.created": "created the eval set {name@}",
    "eval_set.tasks_changed": "changed {tasks|task|tasks} of {name@}: {what}[ {value}]",
    "eval_set.tasks_added": "added {made|task|tasks} to {name@}[: {what}]",
    "task.created": "added {=a task@evals.evalset:set_id} to {set}",
    "task.edited": "edited {=a task@evals.evalset:set_id} in {set}",
    "task.removed": "removed the task “{key}” from {set}",
    "task.confirmed": "confirmed the task “{key}” of {set}",
    "variants.used": "accepted {used|synthetic variant|synthetic variants} for {name@}",
    "variants.discarded": (
        "discarded a batch of {size|synthetic variant|synthetic variants} of {name@}"
    ),
    "variants.asked_for": (
        "requested synthetic variants of {name@} from {model} ({asked|request|requests})"
    ),
    "variants.model_asked": (
        "generated synthetic variants of {name@} with {model}[: {calls|call|calls}][,"
        " {output_tokens|output token|output tokens}]"
    ),
    "meaning.asked_for": "started a semantic check of {name@}[ with {source}]",
    "meaning.decided": (
        "marked a pair of tasks of {name@} as “{verdict}”[; the task {key} was removed{?removed}]"
    ),
    "meaning.undone": "removed the mark “{verdict}” from a pair of tasks of {name@}",
    "evalrun.finished_early": (
        "finished the evaluation {name@} early, with {answers|answer|answers}"
    ),
    "evalrun.stopped": (
        "stopped the evaluation {name@} early, after {done} of {total|task|tasks}: the result was"
        " clear"
    ),
}
HOLDOUT = {
    "holdout.evaluation": "evaluated on {n|held-out task|held-out tasks}[ of {set@}][ ({where})]",
    "holdout.view": "viewed {n|held-out task|held-out tasks}[ of {set@}][ ({where})]",
    "holdout.score": (
        "scored answers to {n|held-out task|held-out tasks} by API[ of {set@}][ ({where})]"
    ),
    "holdout.membership": "saw which tasks are held out: {n|task|tasks}[ of {set@}][ ({where})]",
}
REWARDS = {
    "environment.created": "created the environment {name@}",
    "verifier.created": "saved the verifier {name@}",
    "review.opened": "opened {=a reward review@} of {verifier} with {n|output|outputs}",
    "review.outputs_sent": "sent {n|output|outputs} of a training run to {=a reward review@}",
    "review.judged": "judged {=an output@} [a success{?success}][a failure{!success}]",
    "review.answered": "[agreed{?agrees}][disagreed{!agrees}] with a score[: “{reason}”]",
    "review.undone": "withdrew a verdict in a reward review",
    "review.ruled": "ruled {=an output@} [a success{?success}][a failure{!success}][: “{reason}”]",
    "review.lock_overridden": "overrode the training lock of {verifier@}[: “{reason}”]",
    "review.policy_proposed": (
        "proposed a change of the review policy: a second person decides[: “{reason}”]"
    ),
    "review.policy_withdrawn": "withdrew the proposed change of the review policy[: “{reason}”]",
    "review.policy_changed": (
        "changed the review policy[, proposed by {proposed_by}][: “{reason}”]"
    ),
    "review.held_out_exported": (
        "exported {n|judged held-out output|judged held-out outputs} of {=a reward review@}"
    ),
    "probes.waived": (
        "waived {findings|finding|findings} of the probe “{probe}” for {verifier} ({=probe run@})[:"
        " “{reason}”]"
    ),
}
TRAINING = {
    "trainingrun.submitted": "started the training run {name@}[. {oversight}]",
    "trainingrun.resumed": "resumed the training run {name@}[ from step {step}][. {oversight}]",
    "training.exported": "exported {name@} for {engine}",
    "training.imported": (
        "imported the result of {name@}, trained in {engine}[, as {model_version}]"
    ),
    "dataset.frozen": "froze a training set of {size|task|tasks}[, chosen from {of}]",
}
MODELS = {
    "model_version.downloaded": "downloaded the files of the model {name@}",
    "model_version.created": "registered the model {name@}",
    "server.added": "added the server {name}[ at {base_url}][, serving {serves}]",
    "server.edited": "edited the server {name}[: {changed}]",
    "server.removed": "removed the server {name}[ at {base_url}]",
    "gate.reported": "compared {candidate} with {baseline}: the {=gate report@} says {verdict}",
    "gate.outputs_reviewed": (
        "reviewed {n|output|outputs} of {candidate} with a new kind of unsafe action, listed in "
        "{=a gate report@}: {decision}[: “{reason}”]"
    ),
    "channel.initial": "recorded {version@registry.modelversion:version_id} as live in {channel@}",
    "channel.promote": (
        "promoted {version@registry.modelversion:version_id} to {channel@}[ with {=a gate"
        " report@promotion.gatereport:report_id}][, overriding the gate{?overridden}][: “{reason}”]"
    ),
    "channel.rollback": (
        "rolled {channel@} back[ from {source}] to {version@registry.modelversion:version_id}[:"
        " “{reason}”]"
    ),
    "channel.policy_proposed": (
        "proposed a change of who may promote to {channel@}: a second person decides[: “{reason}”]"
    ),
    "channel.policy_withdrawn": (
        "withdrew the proposed change of who may promote to {channel@}[: “{reason}”]"
    ),
    "channel.policy_changed": (
        "saved version {version} of the policy of {channel@}[, proposed by {proposed_by}]"
        "[: “{reason}”]"
    ),
    "channel.proposed": (
        "approved the promotion of {version@registry.modelversion:version_id} to {channel@} with"
        " {=a gate report@promotion.gatereport:report_id}: a second person decides[: “{reason}”]"
    ),
    "channel.labelled": "changed the segment of {channel@}[ from “{before}”] to “{segment}”",
    "channel.frozen": "froze {channel@}[ until {until}][: “{reason}”]",
    "channel.unfrozen": "lifted the freeze of {channel@}",
    "channel.restored": "restored {version@registry.modelversion:version_id} in {channel@}",
    "channel.target_added": "added the {kind} {name} to the targets of {channel@}",
    "channel.target_removed": "removed {name} from the targets of {channel@}",
    "trial.started": (
        "started the {kind} of {version} in {channel@} at {share} of the sessions[: “{reason}”]"
    ),
    "trial.advanced": (
        "moved the {kind} of {version} in {channel@} to {share} of the sessions[: {reason}]"
    ),
    "trial.passed": "completed the last step of the {kind} of {version} in {channel@}[: {reason}]",
    "trial.ended": "ended the {kind} of {version} in {channel@}: it {ending}[: {reason}]",
    "deployment.failed": "marked the deployment “{name}” as failed[: {reason}]",
    "deployment.stopped": "stopped the deployment “{name}”[: {reason}]",
    "deployment.restored": "reloaded the live version after the deployment “{name}”[: {reason}]",
}
AUTOMATION = {
    "flow.saved": "saved version {version} of the flow {name@}",
    "flow.taken_over": "took over the flow {name@} (version {version})",
    "flow.renamed": "renamed the flow “{before}” to {name@}",
    "flow.switched_on": "enabled the flow {name@}",
    "flow.switched_off": "disabled the flow {name@}",
    "flow.deleted": "deleted the flow “{name}” with its {runs|run|runs}",
    "flow.secret_made": "created a webhook secret for the flow {name@}",
    "flow.started": "started {=a run@} of the flow {name} (version {version})[, by {cause}]",
    "flow.succeeded": "finished {=a run@} of the flow {name}",
    "flow.failed": "finished {=a run@} of the flow {name}: failed[: {error}]",
    "flow.cancelled": "finished {=a run@} of the flow {name}: cancelled",
    "flow.answered": "answered the step “{step}” of {=a run@} of the flow {name}: {answer}",
    "flow.cancel_requested": "cancelled {=a run@} of the flow {name}",
    "flow.continued": "continued {=a run@} of the flow {name}",
}
SECTIONS = {
    "people": Section("People and keys", PEOPLE),
    "project": Section("Project", PROJECT, {"projectdeletion": "the deletion of the project"}),
    "trajectories": Section("Trajectories", TRAJECTORIES, {"upload": "the import"}),
    "failures": Section(
        "Failures", FAILURES, {"classification": "", "reclassification": "", "outcometraining": ""}
    ),
    "teamwork": Section("Comments and assignments", TEAMWORK),
    "evals": Section(
        "Eval sets and evaluations",
        EVALS,
        {
            "evalrun": "the evaluation",
            "latencymeasurement": "",
            "taskimport": "the import",
            "variantjob": "",
            "meaningcheck": "",
        },
    ),
    "holdout": Section("Hold-out views", HOLDOUT),
    "rewards": Section("Environments and rewards", REWARDS, {"proberun": "", "rescore": ""}),
    "training": Section(
        "Training",
        TRAINING,
        {"trainingrun": "the training run", "measurement": "", "promptsearch": ""},
    ),
    "models": Section(
        "Models",
        MODELS,
        {
            "serverprobe": "",
            "serverrun": "",
            "playground": "the playground",
            "deployment": "",
            "fingerprintjob": "",
            "mergejob": "",
        },
    ),
    "automation": Section("Flows and webhooks", AUTOMATION),
}
OF_JOBS = {
    "submitted": "started",
    "cancel_requested": "cancelled",
    "resumed": "resumed",
    "resubmitted": "started again",
    "applied": "applied",
}
JOBS = {job: noun for section in SECTIONS.values() for job, noun in section.jobs.items()}
WORDS: dict[str, str] = {
    f"{job}.{what}": f"{verb} {noun} {{name@}}" if noun else f"{verb} “{{name@}}”"
    for job, noun in JOBS.items()
    for what, verb in OF_JOBS.items()
} | {
    action: sentence
    for section in SECTIONS.values()
    for action, sentence in section.sentences.items()
}


def declare(section: str, sentences: Mapping[str, str]) -> None:
    """Adds the sentences that operations declare. Raises ValueError for one that is there."""
    if taken := WORDS.keys() & sentences.keys():
        raise ValueError(f"{', '.join(sorted(taken))} has a sentence already.")
    SECTIONS[section].sentences.update(sentences)
    WORDS.update(sentences)


PAGES = {
    "core.project": "core:audit",
    "core.apikey": "core:keys",
    "trajectories.trajectory": "trajectories:detail",
    "trajectories.upload": "trajectories:import_detail",
    "failures.failure": "failures:case",
    "failures.failurecluster": "failures:cluster",
    "failures.reclassification": "failures:reclassification",
    "evals.evalset": "evals:detail",
    "evals.evalrun": "evals:run",
    "evals.task": "evals:task",
    "environments.environment": "environments:detail",
    "environments.verifier": "reviews:verifier",
    "reviews.rewardreview": "reviews:detail",
    "reviews.proberun": "reviews:probe",
    "prompts.playground": "prompts:playground",
    "training.trainingrun": "training:detail",
    "training.promptsearch": "training:search",
    "registry.modelversion": "promotion:model",
    "promotion.gatereport": "promotion:report",
    "promotion.channel": "promotion:models",
    "automation.flow": "automation:flow",
    "automation.flowrun": "automation:run",
    "webhooks.webhook": "webhooks:detail",
    "dashboard.dashboard": "dashboard:dashboard",
}
FIELD = re.compile(r"\{([?!=]?)([^{}@]+)(@?)([^{}]*)\}")
PART = re.compile(r"\[([^\[\]]*)\]")


class Piece(NamedTuple):
    """Of a sentence: a text, and where it leads ("": nowhere)."""

    text: str
    url: str = ""


def pieces(event: AuditEvent, slug: str = "", gone: Collection[str] = ()) -> list[Piece]:
    """What the actor did. `gone`: objects that are not there any more (`object_name`), to which
    nothing links.
    """
    found: list[Piece] = []
    template, at = WORDS.get(event.action) or _fallback(event), 0
    for part in PART.finditer(template):
        found += _filled(template[at : part.start()], event, slug, gone)
        if all(_given(event.detail, *field.groups()[:2]) for field in FIELD.finditer(part[1])):
            found += _filled(part[1], event, slug, gone)
        at = part.end()
    return [piece for piece in found + _filled(template[at:], event, slug, gone) if piece.text]


def sentence(event: AuditEvent) -> str:
    """Who did what, as plain text."""
    return f"{event.actor_label} {''.join(piece.text for piece in pieces(event))}"


def page_of(kind: str, pk: str, slug: str) -> str:
    """The address of an object's page; "" if it has none."""
    name = PAGES.get(kind, "")
    for args in ([slug, pk], [slug]):
        try:
            return reverse(name, args=args) if name and slug else ""
        except NoReverseMatch:
            continue
    return ""


def _fallback(event: AuditEvent) -> str:
    return f"did {event.action.replace('.', ': ').replace('_', ' ')}"


def _value(detail: dict[str, Any], name: str) -> Any:
    found: Any = detail
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _given(detail: dict[str, Any], sign: str, name: str) -> bool:
    """Whether a part with this field is shown; 0 is a value."""
    value = _value(detail, name.partition("|")[0])
    empty = value is None or value is False or value in ("", [])
    return sign == "=" or empty == (sign == "!")


def _filled(text: str, event: AuditEvent, slug: str, gone: Collection[str]) -> list[Piece]:
    found, at = [], 0
    for field in FIELD.finditer(text):
        sign, asked, linked, where = field.groups()
        name, *forms = asked.split("|")
        found.append(Piece(text[at : field.start()]))
        if sign not in ("?", "!"):
            value = _value(event.detail, name)
            shown = name if sign == "=" else _counted(value, *forms) if forms else _shown(value)
            found.append(Piece(shown, _url(event, where, slug, gone) if linked else ""))
        at = field.end()
    return [*found, Piece(text[at:])]


def _url(event: AuditEvent, where: str, slug: str, gone: Collection[str]) -> str:
    kind, _, name = where.partition(":")
    pk = str(_value(event.detail, name) or "") if where else event.target_id
    kind = kind or event.target_type
    return page_of(kind, pk, slug) if pk and f"{kind}:{pk}" not in gone else ""


def _counted(value: Any, *forms: str) -> str:
    """The number (or how many are in a list) with its noun; the noun alone after an empty form."""
    noun = forms[-2] if (len(value) if isinstance(value, list) else value) == 1 else forms[-1]
    return f"{_shown(value)} {noun}" if forms[0] else noun


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else str(value)[:500]
