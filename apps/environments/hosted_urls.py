"""OpenAI's own paths for graders, so that their clients work with another base URL."""

from django.urls import path

from apps.environments import graders_api

app_name = "hosted"
urlpatterns = [
    path("fine_tuning/alpha/graders/run", graders_api.run_hosted, name="grader_run"),
    path("fine_tuning/alpha/graders/validate", graders_api.validate_hosted, name="grader_validate"),
]
