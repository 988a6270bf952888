from django.urls import path

from apps.failures import api

app_name = "failures_api"
urlpatterns = [path("classification/", api.classification, name="classification")]
