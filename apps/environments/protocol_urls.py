from django.urls import path, re_path

from apps.environments.protocol import views

app_name = "protocol"
here = "<slug:slug>@<int:version>"
urlpatterns = [
    path(here, views.describe, name="describe"),
    path(f"{here}/", views.describe, name="describe_slash"),
    *(path(f"{here}/{name}", view, name=name) for name, view in views.ROUTES.items()),
    path(f"{here}/<str:tool>", views.tool, name="tool"),
    re_path(r"^(?P<rest>.*)$", views.nothing, name="nothing"),
]
