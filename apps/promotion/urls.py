from django.urls import path

from apps.core.operations import page_urls
from apps.promotion import views
from apps.promotion.pages import (
    channel,
    effect,
    files,
    graph,
    pair,
    planning,
    policy,
    trial,
    unsafe,
)

app_name = "promotion"
urlpatterns = [
    path("", views.models, name="models"),
    path("<int:pk>/", views.model, name="model"),
    path("<int:pk>/card/", files.card, name="model_card"),
    path("<int:pk>/download/", files.download, name="model_download"),
    path("<int:pk>/merge/", files.merge, name="merge"),
    path("<int:pk>/graph/", graph.graph, name="graph"),
    path("promotions/<int:pk>/effect/", effect.effect, name="effect"),
    path("compare/", views.compare, name="compare"),
    path("compare/<uuid:baseline>/<uuid:candidate>/", pair.pair, name="pair"),
    path("compare/<uuid:baseline>/<uuid:candidate>/parts/", pair.pair_parts, name="pair_parts"),
    path("compare/<uuid:baseline>/<uuid:candidate>/prepare/", pair.prepare, name="prepare"),
    path("reports/", views.make_report, name="make_report"),
    path("reports/<uuid:pk>/", views.report, name="report"),
    path("reports/<uuid:pk>/unsafe/", unsafe.review_outputs, name="review_outputs"),
    path("plan/<uuid:pk>/", planning.plan, name="plan"),
    path("wear/<uuid:pk>/", planning.wear, name="wear"),
    path("reports/<uuid:pk>/file/", views.report_file, name="report_file"),
    path("channels/", policy.create_channel, name="create_channel"),
    path("channels/<slug:name>/", channel.channel, name="channel"),
    path("channels/<slug:name>/status/", channel.status, name="channel_status"),
    path("channels/<slug:name>/targets/", channel.add_target, name="add_target"),
    path(
        "channels/<slug:name>/targets/<int:pk>/remove/", channel.remove_target, name="remove_target"
    ),
    path("channels/<slug:name>/deployments/<uuid:pk>/", channel.deployment, name="deployment"),
    path("channels/<slug:name>/deployments/<uuid:pk>/stop/", channel.stop, name="deployment_stop"),
    path("channels/<slug:name>/trials/", trial.begin, name="trial_begin"),
    path("channels/<slug:name>/trials/new/", trial.new, name="trial_new"),
    path("channels/<slug:name>/trials/<uuid:pk>/", trial.trial, name="trial"),
    path("channels/<slug:name>/trials/<uuid:pk>/stop/", trial.stop, name="trial_stop"),
    path("channels/<slug:name>/trials/<uuid:pk>/advance/", trial.advance, name="trial_advance"),
    path("channels/<slug:name>/policy/", policy.policy, name="policy"),
    path("channels/<slug:name>/policy/save/", policy.policy_save, name="policy_save"),
    path("channels/<slug:name>/policy/import/", policy.policy_import, name="policy_import"),
    path("channels/<slug:name>/policy/approve/", policy.policy_approve, name="policy_approve"),
    path("channels/<slug:name>/policy/withdraw/", policy.policy_withdraw, name="policy_withdraw"),
    path("channels/<slug:name>/policy/file/", policy.policy_file, name="policy_file"),
    *page_urls("promotion"),
]
