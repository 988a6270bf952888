"""The REST routes of this app's operations."""

from apps.core.operations import rest_urls

app_name = "trajectories_api"
urlpatterns = rest_urls("trajectories")
