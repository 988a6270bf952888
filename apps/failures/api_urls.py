from django.urls import path

from apps.core.operations import rest_urls
from apps.failures import api

app_name = "failures_api"
urlpatterns = [
    *rest_urls("failures"),
    path("classification/", api.classification, name="classification"),
]
