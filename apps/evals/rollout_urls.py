from django.urls import path, re_path

from apps.evals import rollout_views as views

app_name = "rollouts"
urlpatterns = [
    path("<str:token>/mcp", views.rollout, {"rest": "mcp"}, name="mcp"),
    path("<str:token>/tools", views.rollout, {"rest": "tools"}, name="tools"),
    path("<str:token>/tools/<path:name>", views.rollout, {"rest": "tools"}, name="tool"),
    re_path(r"^(?P<rest>.*)$", views.nothing, name="nothing"),
]
