from django.urls import path

from apps.automation import api
from apps.core.operations import rest_urls

app_name = "automation_api"
urlpatterns = [
    path("flows/", api.collection, name="flows"),
    path("flows/<uuid:pk>/", api.item, name="flow"),
    path("flows/<uuid:pk>/dry-run/", api.try_it, name="dry_run"),
    path("flows/<uuid:pk>/runs/", api.runs, name="flow_runs"),
    path("flows/<uuid:pk>/call/", api.call, name="call"),
    path("flow-runs/<uuid:pk>/", api.run, name="run"),
    *rest_urls("automation"),
]
