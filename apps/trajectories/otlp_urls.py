from django.urls import path

from apps.trajectories import otlp_api

app_name = "otlp"
urlpatterns = [
    path("v1/traces", otlp_api.receive_traces, name="traces"),
    path("v1/logs", otlp_api.receive_logs, name="logs"),
    path("v1/metrics", otlp_api.receive_metrics, name="metrics"),
    path("api/public/otel/v1/traces", otlp_api.receive_traces, name="langfuse_traces"),
]
