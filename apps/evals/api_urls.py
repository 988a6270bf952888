from django.urls import path

from apps.evals import api

app_name = "evals_api"
urlpatterns = [
    path("eval-sets/", api.collection, name="sets"),
    path("eval-sets/<uuid:pk>/", api.item, name="set"),
    path("eval-sets/<uuid:pk>/tasks/", api.tasks, name="tasks"),
]
