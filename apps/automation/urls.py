from django.urls import path

from apps.automation import views

app_name = "automation"
urlpatterns = [
    path("", views.listing, name="list"),
    path("set/", views.set_schedule, name="set"),
    path("<int:pk>/run/", views.run_now, name="run"),
]
