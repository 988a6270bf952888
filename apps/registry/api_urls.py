from django.urls import path

from apps.core.operations import rest_urls
from apps.registry import api, uploads_api

app_name = "registry_api"
urlpatterns = [
    path("servers/", api.server_list, name="servers"),
    path("servers/<slug:name>/", api.server_item, name="server"),
    path("servers/<slug:name>/start/", api.server_start, name="server_start"),
    path("servers/<slug:name>/stop/", api.server_stop, name="server_stop"),
    path("servers/<slug:name>/probe/", api.server_probe, name="server_probe"),
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
