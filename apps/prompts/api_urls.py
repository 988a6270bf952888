from django.urls import path

from apps.core.operations import rest_urls
from apps.prompts import api

app_name = "prompts_api"
urlpatterns = [
    path("playgrounds/", api.collection, name="playgrounds"),
    path("playgrounds/<uuid:pk>/", api.item, name="playground"),
    path("playgrounds/<uuid:pk>/save-prompt/", api.save_prompt, name="playground_save_prompt"),
    path("playgrounds/<uuid:pk>/save-task/", api.save_task, name="playground_save_task"),
    *rest_urls("prompts"),
]
