from django.apps import AppConfig


class EvalsConfig(AppConfig):
    name = "apps.evals"
    label = "evals"
    pages = {
        "evals.evalset": "evals:detail",
        "evals.evalrun": "evals:run",
        "evals.task": "evals:task",
        "evals.stepsearch": "evals:step_search",
        "evals.taskproposal": "evals:proposal",
    }
    lists = {
        "evals.evalset": "evals:list",
        "evals.task": "evals:list",
        "evals.evalrun": "evals:list",
        "evals.holdoutview": "evals:list",
        "evals.taskproposal": "evals:proposals",
    }
    declares = (
        "audit_words",
        "drafts",
        "erasing",
        "evaluations",
        "holdout.guards",
        "holdout.scoring",
        "holdout.view_log",
        "importing",
        "jobs",
        "managing",
        "commentable",
        "replays.searches",
        "proposals.reviewing",
    )
    audit_section = "evals"
