from django.urls import path

from apps.promotion import api, channels_api

app_name = "promotion_api"
urlpatterns = [
    path("channels/<slug:name>/", api.channel, name="channel"),
    path("channels/<slug:name>/policy/", channels_api.policy, name="policy"),
    path("channels/<slug:name>/plan/", channels_api.plan, name="plan"),
    path("channels/<slug:name>/promote/", channels_api.promote, name="promote"),
    path("gate-reports/<uuid:pk>/", channels_api.gate_report, name="gate_report"),
]
