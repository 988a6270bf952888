from django.urls import include, path

from apps.core.health import healthz
from apps.core.watching import probes
from apps.core.watching.exposition import metrics

project = "p/<slug:slug>/"

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("livez", probes.livez, name="livez"),
    path("readyz", probes.readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("", include("apps.core.urls")),
    path("", include("apps.core.accounts.urls")),
    path("", include("apps.trajectories.otlp_urls")),
    path("api/", include("apps.trajectories.api_urls")),
    path("api/v1/", include("apps.trajectories.operation_urls")),
    path("api/v1/", include("apps.core.api_urls")),
    path("", include("apps.notifications.urls")),
    path("api/v1/", include("apps.webhooks.api_urls")),
    path("api/v1/", include("apps.teamwork.api_urls")),
    path("api/v1/", include("apps.registry.api_urls")),
    path("api/v1/", include("apps.failures.api_urls")),
    path("api/v1/", include("apps.environments.api_urls")),
    path("v1/", include("apps.environments.hosted_urls")),
    path("env/", include("apps.environments.protocol_urls")),
    path("rollout/", include("apps.evals.rollout_urls")),
    path("api/v1/", include("apps.evals.api_urls")),
    path("api/v1/", include("apps.prompts.api_urls")),
    path("api/v1/", include("apps.reviews.api_urls")),
    path("api/v1/", include("apps.training.api_urls")),
    path("api/v1/", include("apps.promotion.api_urls")),
    path("api/v1/", include("apps.serving.api_urls")),
    path("api/v1/", include("apps.automation.api_urls")),
    path("operator/", include("apps.dashboard.operator.urls")),
    path(project, include("apps.dashboard.urls")),
    path(f"{project}settings/webhooks/", include("apps.webhooks.urls")),
    path(f"{project}comments/", include("apps.teamwork.urls")),
    path(f"{project}trajectories/", include("apps.trajectories.urls")),
    path(f"{project}failures/", include("apps.failures.urls")),
    path(f"{project}evals/", include("apps.evals.urls")),
    path(f"{project}environments/", include("apps.environments.urls")),
    path(f"{project}reviews/", include("apps.reviews.urls")),
    path(f"{project}training/", include("apps.training.urls")),
    path(f"{project}prompts/", include("apps.prompts.urls")),
    path(f"{project}models/", include("apps.registry.urls")),
    path(f"{project}models/", include("apps.promotion.urls")),
    path(f"{project}endpoint/", include("apps.serving.urls")),
    path(f"{project}automation/", include("apps.automation.urls")),
]

handler400 = "apps.core.errors.bad_request"
handler403 = "apps.core.errors.forbidden"
handler404 = "apps.core.errors.not_found"
handler500 = "apps.core.errors.server_error"
