from django.urls import path

from apps.core.operations import page_urls
from apps.webhooks import views

app_name = "webhooks"
urlpatterns = [
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/log/", views.log, name="log"),
    path("deliveries/<uuid:pk>/", views.delivery, name="delivery"),
    *page_urls("webhooks"),
]
