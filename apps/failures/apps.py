from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"
    audit_section = "failures"
    pages = {
        "failures.failure": "failures:case",
        "failures.failurecluster": "failures:cluster",
        "failures.judgemeasurement": "failures:judge_measurement",
        "failures.reclassification": "failures:reclassification",
        "failures.rubricsearch": "failures:rubric_search",
        "failures.signal": "failures:signal",
    }
    lists = {"failures.failure": "failures:list"}
    declares = (
        "actions.accuracy",
        "actions.clusters",
        "actions.decisions",
        "actions.inbox",
        "actions.judge",
        "actions.judging",
        "actions.outcomes",
        "actions.reply_decisions",
        "actions.rule_decisions",
        "actions.signals",
        "audit_words",
        "classify_job",
        "jobs",
        "run_counts",
        "assignable",
        "watched",
    )
