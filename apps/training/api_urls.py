from django.urls import path

from apps.core.operations import rest_urls
from apps.training import (
    examples_api,
    lineage_api,
    outputs_api,
    runs_api,
    steering_api,
    work_api,
)
from apps.training.engines import api as engines_api
from apps.training.engines import ray_pages
from apps.training.prompt_search import api

app_name = "training_api"
urlpatterns = [
    path("lineage/", lineage_api.lineage, name="lineage"),
    path("work/", work_api.work, name="work"),
    path("training-runs/", runs_api.collection, name="runs"),
    path("training-runs/estimate/", runs_api.estimated, name="run_estimate"),
    path("training-runs/compare/", runs_api.compare, name="runs_compare"),
    path("training-runs/<uuid:pk>/", runs_api.item, name="run"),
    path("training-runs/<uuid:pk>/examples/", examples_api.of_run, name="run_examples"),
    path("training-examples/", examples_api.available, name="examples"),
    path("training-runs/import/", engines_api.import_result, name="run_import"),
    path("training-runs/<uuid:pk>/export/", engines_api.export, name="run_export"),
    path("training-runs/<uuid:pk>/submit/", ray_pages.submit_by_api, name="run_submit"),
    path("training-runs/<uuid:pk>/base/<path:name>", ray_pages.base_file, name="run_base"),
    path("training-runs/<uuid:pk>/result/", ray_pages.result, name="run_result"),
    path("training-runs/<uuid:pk>/config/", runs_api.config, name="run_config"),
    path("training-runs/<uuid:pk>/fork/", steering_api.fork, name="run_fork"),
    path("training-runs/<uuid:pk>/outputs/review/", outputs_api.send, name="run_outputs_send"),
    path("training-runs/<uuid:pk>/outputs/", outputs_api.compare, name="run_outputs"),
    path("training-runs/<uuid:pk>/metrics/", runs_api.metrics, name="run_metrics"),
    path("training-runs/<uuid:pk>/rollouts/", runs_api.rollouts, name="run_rollouts"),
    path("training-runs/<uuid:pk>/rollouts/<int:number>/", runs_api.rollout, name="run_rollout"),
    path("prompt-searches/", api.collection, name="searches"),
    path("prompt-searches/<uuid:pk>/", api.item, name="search"),
    path("prompt-searches/<uuid:pk>/save/", api.save, name="search_save"),
    *rest_urls("training"),
]
