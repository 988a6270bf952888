from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "apps.failures"
    label = "failures"
    pages = {
        "failures.failure": "failures:case",
        "failures.failurecluster": "failures:cluster",
        "failures.reclassification": "failures:reclassification",
    }
    lists = {"failures.failure": "failures:list"}
    declares = (
        "actions.decisions",
        "audit_words",
        "classify_job",
        "jobs",
        "run_counts",
        "assignable",
    )
