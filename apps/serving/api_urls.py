from django.urls import path

from apps.serving import api

app_name = "serving_api"
urlpatterns = [
    path("endpoint/", api.endpoint, name="endpoint"),
    path("endpoint/limits/<int:pk>/", api.limits, name="limits"),
]
