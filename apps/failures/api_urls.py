from django.urls import path

from apps.core.operations import rest_urls
from apps.failures import api, outcomes_api, policy_api

app_name = "failures_api"
urlpatterns = [
    *rest_urls("failures"),
    path("classification/", api.classification, name="classification"),
    path("outcomes/", outcomes_api.outcomes, name="outcomes"),
    path("outcomes/checks/", outcomes_api.answer_checks, name="checks"),
    path("policy-rules/", policy_api.rules, name="policy_rules"),
    path("policy-rules/<int:pk>/", policy_api.rule, name="policy_rule"),
]
