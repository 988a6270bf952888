from django.urls import path, re_path

from apps.evals import rollout_views as views

app_name = "rollouts"
urlpatterns = [
    path("<str:token>/<path:rest>", views.rollout, name="rollout"),
    re_path(r"^(?P<rest>.*)$", views.nothing, name="nothing"),
]
