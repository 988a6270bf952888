from django.urls import path

from apps.dashboard import views

app_name = "dashboard"
urlpatterns = [
    path("", views.home, name="home"),
    path("overview/failure-rate/", views.failure_rate, name="failure_rate"),
    path("overview/performance/", views.performance, name="performance"),
    path("overview/promotion-effect/", views.promotion_effect, name="promotion_effect"),
]
