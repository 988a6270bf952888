from django.urls import path

from apps.trajectories import views

app_name = "trajectories"
urlpatterns = [
    path("", views.listing, name="list"),
    path("export/", views.export, name="export"),
    path("<uuid:pk>/", views.detail, name="detail"),
]
