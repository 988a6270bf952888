from django.urls import path

from apps.core.operations import rest_urls
from apps.failures import api, outcomes_api

app_name = "failures_api"
urlpatterns = [
    *rest_urls("failures"),
    path("classification/", api.classification, name="classification"),
    path("outcomes/", outcomes_api.outcomes, name="outcomes"),
    path("outcomes/checks/", outcomes_api.answer_checks, name="checks"),
]
