from django.urls import path

from apps.reviews import api, probe_api

app_name = "reviews_api"
urlpatterns = [
    path("reviews/", api.reviews, name="reviews"),
    path("reviews/<int:pk>/", api.review, name="review"),
    path("locks/", api.locks, name="locks"),
    path("locks/<slug:slug>@<int:version>/", api.lock, name="lock"),
    path("probes/", probe_api.probes, name="probes"),
    path("probes/<uuid:pk>/", probe_api.probe, name="probe"),
    path("probes/<uuid:pk>/cancel", probe_api.cancel, name="probe_cancel"),
    path("probes/<uuid:pk>/waive", probe_api.accept, name="probe_waive"),
]
