from django.urls import path

from apps.core.operations import rest_urls
from apps.evals import (
    answers_api,
    api,
    drafts_api,
    editing_api,
    files_api,
    imports_api,
    learnability_api,
    runs_api,
    samples_api,
    sources_api,
)
from apps.evals.meaning import api as meaning
from apps.evals.variants import api as variants

app_name = "evals_api"
urlpatterns = [
    path("eval-sets/", api.collection, name="sets"),
    path("eval-sets/<uuid:pk>/", api.item, name="set"),
    path("eval-sets/<uuid:pk>/tasks/", api.tasks, name="tasks"),
    path("eval-sets/<uuid:pk>/tasks/edit/", editing_api.edit_task, name="edit_task"),
    path("eval-sets/<uuid:pk>/tasks/change/", editing_api.change_tasks, name="change_tasks"),
    path(
        "eval-sets/<uuid:pk>/tasks/from-production/",
        sources_api.from_production,
        name="from_production",
    ),
    path("eval-sets/<uuid:pk>/tasks/from-failure/", sources_api.from_failure, name="from_failure"),
    path(
        "eval-sets/<uuid:pk>/tasks/from-evaluation/",
        sources_api.from_evaluation,
        name="from_evaluation",
    ),
    path(
        "eval-sets/<uuid:pk>/tasks/from-environment/",
        sources_api.from_environment,
        name="from_environment",
    ),
    path("eval-sets/<uuid:pk>/tasks/general/", sources_api.general, name="general"),
    path("eval-sets/<uuid:pk>/tasks/confirm/", variants.confirm, name="confirm_task"),
    path("eval-sets/<uuid:pk>/imports/", imports_api.imports, name="imports"),
    path("eval-sets/<uuid:pk>/imports/<uuid:identity>/", imports_api.item, name="import"),
    path(
        "eval-sets/<uuid:pk>/imports/<uuid:identity>/cancel/",
        imports_api.cancel,
        name="import_cancel",
    ),
    path("eval-sets/<uuid:pk>/variants/", variants.variants, name="variants"),
    path("eval-sets/<uuid:pk>/variants/judge/", variants.judge, name="judge_variant"),
    path("eval-sets/<uuid:pk>/variants/end/", variants.end, name="end_batch"),
    path("eval-sets/<uuid:pk>/variants/write/", variants.write, name="variant_job_start"),
    path("eval-sets/<uuid:pk>/variants/write/cancel/", variants.cancel, name="variant_job_stop"),
    path("eval-sets/<uuid:pk>/export/", files_api.export, name="export"),
    path("eval-sets/<uuid:pk>/changes/", files_api.changes, name="changes"),
    path("eval-sets/<uuid:pk>/environment/", drafts_api.environment, name="set_environment"),
    path("eval-runs/compare/", samples_api.compare, name="runs_compare"),
    path("eval-runs/<uuid:pk>/", runs_api.item, name="run"),
    path("eval-runs/<uuid:pk>/samples/", runs_api.samples, name="run_samples"),
    path("eval-runs/<uuid:pk>/samples/export/", samples_api.export, name="export_samples"),
    path("eval-runs/<uuid:pk>/samples/<int:number>/", samples_api.item, name="run_sample"),
    path("eval-runs/<uuid:pk>/learnability/", learnability_api.learnability, name="learnability"),
    path("eval-runs/<uuid:pk>/tasks/", answers_api.tasks, name="run_tasks"),
    path("eval-runs/<uuid:pk>/finish/", answers_api.finish, name="run_finish"),
    path("eval-sets/<uuid:pk>/meaning-checks/", meaning.checks, name="meaning_checks"),
    path("eval-sets/<uuid:pk>/meaning-checks/<uuid:job>/", meaning.item, name="meaning_check"),
    path(
        "eval-sets/<uuid:pk>/meaning-checks/<uuid:job>/cancel/",
        meaning.cancel,
        name="meaning_check_cancel",
    ),
    *rest_urls("evals"),
]
