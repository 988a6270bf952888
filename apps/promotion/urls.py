from django.urls import path

from apps.promotion import views

app_name = "promotion"
urlpatterns = [
    path("", views.models, name="models"),
    path("<int:pk>/", views.model, name="model"),
    path("compare/", views.compare, name="compare"),
    path("reports/", views.make_report, name="make_report"),
    path("reports/<uuid:pk>/", views.report, name="report"),
    path("reports/<uuid:pk>/promote/", views.promote, name="promote"),
    path("channels/<slug:name>/rollback/", views.rollback, name="rollback"),
]
