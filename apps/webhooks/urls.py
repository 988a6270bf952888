from django.urls import path

from apps.webhooks import views

app_name = "webhooks"
urlpatterns = [
    path("", views.listing, name="list"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/log/", views.log, name="log"),
    path("<uuid:pk>/edit/", views.edit, name="edit"),
    path("<uuid:pk>/delete/", views.delete, name="delete"),
    path("<uuid:pk>/switch/", views.switch, name="switch"),
    path("<uuid:pk>/secret/", views.rotate, name="rotate"),
    path("<uuid:pk>/test/", views.test, name="test"),
    path("deliveries/<uuid:pk>/", views.delivery, name="delivery"),
    path("deliveries/<uuid:pk>/again/", views.again, name="again"),
]
