from django.urls import path

from apps.automation import views
from apps.core.operations import page_urls

app_name = "automation"
urlpatterns = [
    path("", views.listing, name="list"),
    path("new/", views.new, name="new"),
    path("editor/", views.editor, name="editor"),
    path("check/", views.check, name="check"),
    path("<uuid:pk>/", views.flow, name="flow"),
    path("<uuid:pk>/edit/", views.edit, name="edit"),
    path("<uuid:pk>/dry-run/", views.try_it, name="dry_run"),
    path("<uuid:pk>/run/", views.run_now, name="run_now"),
    path("<uuid:pk>/secret/", views.secret, name="secret"),
    path("<uuid:pk>/delete/", views.delete, name="delete"),
    path("runs/", views.runs, name="runs"),
    path("runs/<uuid:pk>/", views.run, name="run"),
    path("runs/<uuid:pk>/status/", views.run_status, name="run_status"),
    *page_urls("automation"),
]
