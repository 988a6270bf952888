from django.urls import path

from apps.training import views

app_name = "training"
urlpatterns = [
    path("", views.listing, name="list"),
    path("new/", views.new, name="new"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/status/", views.status, name="status"),
    path("<uuid:pk>/resume/", views.resume, name="resume"),
    path("<uuid:pk>/cancel/", views.cancel, name="cancel"),
]
