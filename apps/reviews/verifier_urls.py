"""Routes of verifiers: their pages, the editor, the probes. Part of the namespace `reviews`."""

from django.urls import path

from apps.reviews.pages import editor, verifiers

urlpatterns = [
    path("verifiers/new/", editor.new, name="verifier_new"),
    path("verifiers/create/", editor.save, name="verifier_create"),
    path("verifiers/check/", editor.check, name="verifier_check"),
    path("verifiers/<int:pk>/", verifiers.detail, name="verifier"),
    path("verifiers/<int:pk>/edit/", editor.edit, name="verifier_edit"),
    path("verifiers/<int:pk>/save/", editor.save, name="verifier_save"),
    path("verifiers/<int:pk>/try/", editor.try_it, name="verifier_try"),
    path("verifiers/<int:pk>/probe/", verifiers.run_probe, name="probe_run"),
    path("rescores/<uuid:pk>/", editor.rescore, name="rescore"),
    path("probes/<uuid:pk>/", verifiers.probe, name="probe"),
    path("probes/<uuid:pk>/status/", verifiers.probe_status, name="probe_status"),
    path("probes/<uuid:pk>/cancel/", verifiers.cancel_probe, name="probe_cancel"),
    path("probes/<uuid:pk>/waive/", verifiers.waive_probe, name="probe_waive"),
]
