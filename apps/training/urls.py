from django.urls import path

from apps.core.operations import page_urls
from apps.training import views
from apps.training.engines import pages as engine_pages
from apps.training.engines import ray_pages
from apps.training.pages import (
    budget,
    comparison,
    configs,
    examples,
    forks,
    lineage,
    outputs,
    rollouts,
)
from apps.training.prompt_search import pages

app_name = "training"
urlpatterns = [
    path("", views.listing, name="list"),
    path("compare/", comparison.compare, name="compare"),
    path("compare/curve/", comparison.curve, name="curve"),
    path("learned/trajectory/<uuid:pk>/", lineage.of_trajectory, name="learned_from_trajectory"),
    path("learned/task/<uuid:pk>/", lineage.of_task, name="learned_from_task"),
    path("new/", views.new, name="new"),
    path("new/start/", views.start_state, name="start_state"),
    path("new/budget/", budget.panel, name="budget"),
    path("new/examples/", examples.preview, name="examples"),
    path("import/", engine_pages.import_result, name="import"),
    path("new/yaml/", configs.from_yaml, name="new_from_yaml"),
    path("prompt-searches/", pages.listing, name="searches"),
    path("prompt-searches/new/", pages.new, name="search_new"),
    path("prompt-searches/<uuid:pk>/", pages.detail, name="search"),
    path("prompt-searches/<uuid:pk>/status/", pages.status, name="search_status"),
    path("prompt-searches/<uuid:pk>/save/<int:number>/", pages.save, name="search_save"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/config/", configs.as_yaml, name="config"),
    path("<uuid:pk>/status/", views.status, name="status"),
    path("<uuid:pk>/examples/", examples.of_run, name="run_examples"),
    path("<uuid:pk>/rollouts/", rollouts.rollouts, name="rollouts"),
    path("<uuid:pk>/rollouts/<int:number>/", rollouts.rollout, name="rollout"),
    path("<uuid:pk>/outputs/send/", outputs.send, name="outputs_send"),
    path("<uuid:pk>/outputs/", outputs.compare, name="outputs"),
    path("<uuid:pk>/export/", engine_pages.export, name="export"),
    path("<uuid:pk>/fork/budget/", budget.of_fork, name="fork_budget"),
    path("<uuid:pk>/submit/", ray_pages.submit, name="submit"),
    path("<uuid:pk>/fork/", forks.fork, name="fork"),
    *page_urls("training"),
]
