from django.urls import path

from apps.core.operations import rest_urls
from apps.promotion import api, channels_api, effects_api, preparation_api, reports_api, unsafe_api
from apps.promotion.deployment import api as deployment_api
from apps.promotion.pulling import api as pulling
from apps.promotion.trials import api as trials_api

app_name = "promotion_api"
urlpatterns = [
    *rest_urls("promotion"),
    path("channels/<slug:name>/", pulling.channel, name="channel"),
    path("channels/<slug:name>/history/", api.history, name="history"),
    path("channels/<slug:name>/history/<int:pk>/effect/", effects_api.effect, name="effect"),
    path("channels/<slug:name>/policy/", channels_api.policy, name="policy"),
    path(
        "channels/<slug:name>/policy/approve/", channels_api.approve_policy, name="policy_approve"
    ),
    path(
        "channels/<slug:name>/policy/withdraw/",
        channels_api.withdraw_policy,
        name="policy_withdraw",
    ),
    path("channels/<slug:name>/plan/", channels_api.plan, name="plan"),
    path("lineage/graph/", effects_api.graph, name="graph"),
    path("channels/<slug:name>/targets/", deployment_api.targets, name="targets"),
    path("channels/<slug:name>/targets/<int:pk>/", deployment_api.target, name="target"),
    path("channels/<slug:name>/deployments/", deployment_api.deployments, name="deployments"),
    path(
        "channels/<slug:name>/deployments/<uuid:pk>/", deployment_api.deployment, name="deployment"
    ),
    path(
        "channels/<slug:name>/deployments/<uuid:pk>/stop/",
        deployment_api.stop,
        name="deployment_stop",
    ),
    path("channels/<slug:name>/trials/", trials_api.trials, name="trials"),
    path("channels/<slug:name>/trials/forecast/", trials_api.harm, name="trial_forecast"),
    path("channels/<slug:name>/trials/<uuid:pk>/", trials_api.trial, name="trial"),
    path("channels/<slug:name>/trials/<uuid:pk>/stop/", trials_api.stop, name="trial_stop"),
    path(
        "channels/<slug:name>/trials/<uuid:pk>/advance/", trials_api.advance, name="trial_advance"
    ),
    path("gate-reports/", reports_api.collection, name="gate_reports"),
    path("gate-reports/preparation/", preparation_api.pair, name="preparation"),
    path("gate-reports/<uuid:pk>/", reports_api.item, name="gate_report"),
    path("gate-reports/<uuid:pk>/unsafe-outputs/", unsafe_api.outputs, name="unsafe_outputs"),
    path("downloads/<str:token>/", pulling.download, name="download"),
    path("model-versions/<int:pk>/card/", pulling.card, name="card"),
    path("model-versions/<int:pk>/merge/", pulling.merge, name="merge"),
    path("model-versions/<int:pk>/download/", pulling.download_link, name="download_link"),
]
