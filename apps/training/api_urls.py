from django.urls import path

from apps.training.prompt_search import api

app_name = "training_api"
urlpatterns = [
    path("prompt-searches/", api.collection, name="searches"),
    path("prompt-searches/<uuid:pk>/", api.item, name="search"),
    path("prompt-searches/<uuid:pk>/cancel/", api.cancel, name="search_cancel"),
    path("prompt-searches/<uuid:pk>/resume/", api.resume, name="search_resume"),
    path("prompt-searches/<uuid:pk>/save/", api.save, name="search_save"),
]
