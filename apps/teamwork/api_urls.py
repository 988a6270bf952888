from django.urls import path

from apps.teamwork import api

app_name = "teamwork_api"
urlpatterns = [
    path("comments/", api.collection, name="comments"),
    path("comments/<uuid:pk>/", api.item, name="comment"),
    path("assignments/", api.assignments, name="assignments"),
]
