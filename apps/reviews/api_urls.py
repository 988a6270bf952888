from django.urls import path

from apps.reviews import api

app_name = "reviews_api"
urlpatterns = [
    path("reviews/", api.reviews, name="reviews"),
    path("reviews/<int:pk>/", api.review, name="review"),
    path("locks/", api.locks, name="locks"),
    path("locks/<slug:slug>@<int:version>/", api.lock, name="lock"),
]
