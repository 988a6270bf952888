from django.urls import path

from apps.webhooks import api

app_name = "webhooks_api"
urlpatterns = [
    path("webhooks/", api.collection, name="webhooks"),
    path("webhooks/<uuid:pk>/", api.item, name="webhook"),
    path("webhooks/<uuid:pk>/secret/", api.secret, name="secret"),
    path("webhooks/<uuid:pk>/test/", api.test, name="test"),
    path("webhooks/<uuid:pk>/deliveries/", api.deliveries, name="deliveries"),
    path("webhook-deliveries/<uuid:pk>/", api.delivery, name="delivery"),
    path("webhook-deliveries/<uuid:pk>/send-again/", api.again, name="again"),
]
