from django.urls import path

from apps.evals.pages import environment, failures, files, learnability, sets, versions

app_name = "evals"
urlpatterns = [
    path("", sets.listing, name="list"),
    path("create/", sets.create, name="create"),
    path("<uuid:pk>/", sets.detail, name="detail"),
    path("<uuid:pk>/look/", sets.look, name="look"),
    path("<uuid:pk>/add/", sets.add_trajectories, name="add_trajectories"),
    path("<uuid:pk>/task/", sets.add_task, name="add_task"),
    path("<uuid:pk>/split/", sets.split, name="split"),
    path("<uuid:pk>/freeze/", sets.freeze, name="freeze"),
    path("<uuid:pk>/version/", sets.new_version, name="new_version"),
    path("<uuid:pk>/evaluate/", sets.new_run, name="new_run"),
    path("<uuid:pk>/environment/", environment.for_set, name="environment"),
    path("<uuid:pk>/successes/", failures.from_successes, name="from_successes"),
    path("<uuid:pk>/import/", files.import_file, name="import"),
    path("<uuid:pk>/import/start/", files.import_start, name="import_start"),
    path("<uuid:pk>/import/<uuid:identity>/", files.import_status, name="import_status"),
    path("<uuid:pk>/export/", files.export, name="export"),
    path("<uuid:pk>/export/holdout/", files.export_holdout, name="export_holdout"),
    path("<uuid:pk>/versions/", versions.versions, name="versions"),
    path("<uuid:pk>/versions/look/", versions.versions_look, name="versions_look"),
    path("<uuid:pk>/general/", versions.general, name="general"),
    path("<uuid:pk>/variants/", versions.variants_page, name="variants"),
    path("<uuid:pk>/variants/make/", versions.make_variants, name="make_variants"),
    path("<uuid:pk>/variants/end/", versions.end_batch, name="end_batch"),
    path("tasks/<uuid:pk>/confirm/", versions.confirm_task, name="confirm_task"),
    path("tasks/<uuid:pk>/verdict/", versions.judge_variant, name="judge_variant"),
    path("from-failure/<int:pk>/", failures.task_from_failure, name="task_from_failure"),
    path("tasks/<uuid:pk>/remove/", sets.remove_task, name="remove_task"),
    path("runs/<uuid:pk>/", sets.run, name="run"),
    path("runs/<uuid:pk>/status/", sets.run_status, name="run_status"),
    path("runs/<uuid:pk>/learnability/", learnability.learnability, name="learnability"),
    path("runs/<uuid:pk>/cancel/", sets.cancel, name="cancel"),
]
