from django.urls import path

from apps.notifications import views

app_name = "notifications"
urlpatterns = [
    path("notifications/", views.listing, name="list"),
    path("notifications/count/", views.count, name="count"),
    path("notifications/read/", views.read, name="read"),
    path("notifications/<uuid:pk>/", views.opened, name="open"),
    path("account/notifications/", views.preferences, name="preferences"),
]
