from django.urls import path

from apps.core import keys_api
from apps.core.auditing import api as auditing
from apps.core.managed import api as managed_api
from apps.core.projects import api as project_api

app_name = "core_api"
urlpatterns = [
    path("audit/", auditing.audit, name="audit"),
    path("project/", project_api.project, name="project"),
    path("objects/<slug:kind>/<slug:pk>/", managed_api.item, name="object"),
    path("keys/", keys_api.collection, name="keys"),
    path("keys/<int:pk>/", keys_api.item, name="key"),
    path("keys/<int:pk>/rotate/", keys_api.rotate, name="key_rotate"),
]
