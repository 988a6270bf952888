from django.urls import path

from apps.reviews import verifier_urls
from apps.reviews.pages import effect, listing, policy, queue, results

app_name = "reviews"
urlpatterns = [
    path("", listing.listing, name="list"),
    path("policy/", policy.policy, name="policy"),
    path("policy/save/", policy.policy_save, name="policy_save"),
    path("verifiers/<int:pk>/review/", listing.open_review, name="open"),
    path("verifiers/<int:pk>/score/", listing.score_run, name="score_run"),
    path("verifiers/<int:pk>/override/", listing.override, name="override"),
    path("verifiers/<int:pk>/effect/", effect.effect, name="effect"),
    path("<int:pk>/", results.detail, name="detail"),
    path("<int:pk>/export/", results.export, name="export"),
    path("<int:pk>/adjudicate/", results.adjudicate, name="adjudicate"),
    path("<int:pk>/queue/", queue.queue, name="queue"),
    path("<int:pk>/undo/", queue.undo, name="undo"),
    path("items/<int:pk>/", queue.item, name="item"),
    path("items/<int:pk>/step/", queue.step, name="step"),
    path("items/<int:pk>/judge/", queue.judge, name="judge"),
    path("items/<int:pk>/answer/", queue.answer, name="answer"),
    path("items/<int:pk>/rule/", results.rule, name="rule"),
    *verifier_urls.urlpatterns,
]
