from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "apps.training"
    label = "training"
    pages = {
        "training.trainingrun": "training:detail",
        "training.promptsearch": "training:search",
    }
    lists = {"training.trainingrun": "training:list"}
    declares = (
        "audit_words",
        "engines.ray",
        "erasing",
        "jobs",
        "judged_outputs",
        "lineage",
        "managing",
        "prompt_search.api",
        "steering_api",
        "targets",
    )
