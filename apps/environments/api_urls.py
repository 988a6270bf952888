from django.urls import path

from apps.environments import api, create_api, graders_api, packages_api

app_name = "environments_api"
urlpatterns = [
    path("environments/", create_api.collection, name="environments"),
    path("environments/<slug:slug>@<int:version>/", api.item, name="environment"),
    path("environment-packages/", packages_api.collection, name="packages"),
    path("environment-packages/<slug:name>/", packages_api.item, name="package"),
    path("verifiers/", api.verifiers, name="verifiers"),
    path("graders/run", graders_api.run_grader, name="grader_run"),
    path("graders/validate", graders_api.validate_grader, name="grader_validate"),
]
