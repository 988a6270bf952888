from django.urls import path

from apps.dashboard import pages, views

app_name = "dashboard"
urlpatterns = [
    path("", views.home, name="home"),
    path("search/", views.search, name="search"),
    path("overview/failure-rate/", views.failure_rate, name="failure_rate"),
    path("overview/performance/", views.performance, name="performance"),
    path("overview/promotion-effect/", views.promotion_effect, name="promotion_effect"),
    path("charts/", pages.explore, name="explore"),
    path("charts/save/", pages.save_chart, name="save_chart"),
    path("charts/<int:pk>/", pages.chart, name="chart"),
    path("charts/<int:pk>/change/", pages.change_chart, name="change_chart"),
    path("dashboards/", pages.dashboards, name="dashboards"),
    path("dashboards/create/", pages.create, name="create"),
    path("dashboards/<int:pk>/", pages.dashboard, name="dashboard"),
    path("dashboards/<int:pk>/rename/", pages.rename, name="rename"),
    path("dashboards/<int:pk>/duplicate/", pages.duplicate, name="duplicate"),
    path("dashboards/<int:pk>/delete/", pages.delete, name="delete"),
]
