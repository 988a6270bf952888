from django.urls import path, register_converter
from django.urls.converters import StringConverter
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from apps.trajectories import (
    api,
    imports_api,
    media_api,
    metrics_api,
    scores_api,
    steps_api,
    traces_api,
)


class AnyText(StringConverter):
    """A client's id may hold slashes and line breaks; Django's `path` knows no line breaks."""

    regex = r"(?s:.+)"


register_converter(AnyText, "anything")
app_name = "api"
urlpatterns = [
    path("v1/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="api:schema"), name="docs"),
    path("v1/metrics/", metrics_api.metrics, name="metrics"),
    path("v1/media/", media_api.uploads, name="media"),
    path("v1/media/<slug:digest>/", media_api.one, name="medium"),
    path("v1/steps/", steps_api.steps, name="steps"),
    path("v1/steps/metrics/", steps_api.metrics, name="steps_metrics"),
    path("v1/steps/export/", steps_api.export, name="steps_export"),
    path("v1/scores/", scores_api.scores, name="scores"),
    path("v1/scores/metrics/", scores_api.metrics, name="scores_metrics"),
    path("v1/scores/export/", scores_api.export, name="scores_export"),
    path("v1/imports/", imports_api.imports, name="imports"),
    path("v1/imports/<uuid:pk>/", imports_api.one_import, name="import"),
    path("v1/import-mappings/", imports_api.mappings, name="import_mappings"),
    path("v1/import-mappings/<str:name>/", imports_api.mapping, name="import_mapping"),
    path("v1/traces/without-run/", traces_api.without_run, name="traces_without_run"),
    path("v1/trajectories/", api.collection, name="trajectories"),
    path("v1/trajectories/batch/", api.batch, name="batch"),
    path("v1/trajectories/<anything:external_id>/feedback/", api.feedback, name="feedback"),
    path("v1/trajectories/<anything:external_id>/", api.item, name="trajectory"),
]
