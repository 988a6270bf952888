from django.urls import path

from apps.core.operations import rest_urls
from apps.registry import api, uploads_api

app_name = "registry_api"
urlpatterns = [
    path("servers/", api.server_list, name="servers"),
    path("model-versions/", api.version_list, name="model_versions"),
    path("model-versions/<int:pk>/", api.version_item, name="model_version"),
    path("adapter-uploads/", uploads_api.collection, name="adapter_uploads"),
    path("adapter-uploads/<uuid:pk>/", uploads_api.item, name="adapter_upload"),
    path("adapter-uploads/<uuid:pk>/finish/", uploads_api.finish, name="adapter_upload_finish"),
    path(
        "adapter-uploads/<uuid:pk>/<str:path>/<int:number>/",
        uploads_api.part,
        name="adapter_upload_part",
    ),
    *rest_urls("registry"),
]
