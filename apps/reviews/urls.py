from django.urls import path

from apps.reviews import views

app_name = "reviews"
urlpatterns = [
    path("", views.listing, name="list"),
    path("open/<uuid:pk>/", views.open_review, name="open"),
    path("<int:pk>/", views.detail, name="detail"),
    path("items/<int:pk>/judge/", views.judge, name="judge"),
    path("<int:pk>/undo/", views.undo, name="undo"),
    path("verifiers/<int:pk>/override/", views.override, name="override"),
]
