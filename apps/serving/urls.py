from django.urls import path

from apps.serving import views

app_name = "serving"
urlpatterns = [
    path("", views.endpoint, name="endpoint"),
    path("limits/<int:pk>/", views.limits, name="limits"),
]
