from django.urls import path

from apps.reviews import verifier_urls
from apps.reviews.pages import judging, listing, policy_form, results, verifier_diff

app_name = "reviews"
urlpatterns = [
    path("", listing.listing, name="list"),
    path("policy/", policy_form.policy, name="policy"),
    path("policy/save/", policy_form.policy_save, name="policy_save"),
    path("policy/approve/", policy_form.policy_approve, name="policy_approve"),
    path("policy/withdraw/", policy_form.policy_withdraw, name="policy_withdraw"),
    path("verifiers/<int:pk>/review/", listing.open_review, name="open"),
    path("verifiers/<int:pk>/score/", listing.score_run, name="score_run"),
    path("verifiers/<int:pk>/override/", listing.override, name="override"),
    path("verifiers/<int:pk>/effect/", verifier_diff.effect, name="effect"),
    path("<int:pk>/", results.detail, name="detail"),
    path("<int:pk>/export/", results.export, name="export"),
    path("<int:pk>/adjudicate/", results.adjudicate, name="adjudicate"),
    path("<int:pk>/queue/", judging.queue, name="queue"),
    path("<int:pk>/undo/", judging.undo, name="undo"),
    path("items/<int:pk>/", judging.item, name="item"),
    path("items/<int:pk>/step/", judging.step, name="step"),
    path("items/<int:pk>/judge/", judging.judge, name="judge"),
    path("items/<int:pk>/answer/", judging.answer, name="answer"),
    path("items/<int:pk>/rule/", results.rule, name="rule"),
    *verifier_urls.urlpatterns,
]
