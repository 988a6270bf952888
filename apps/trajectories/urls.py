from django.urls import path

from apps.trajectories import (
    views,
    views_bulk,
    views_detail,
    views_import,
    views_redaction,
    views_saved,
    views_sessions,
)

app_name = "trajectories"
urlpatterns = [
    path("", views.listing, name="list"),
    path("count/", views.count, name="count"),
    path("trend/", views.trend, name="trend"),
    path("export/", views.export, name="export"),
    path("bulk/", views_bulk.bulk, name="bulk"),
    path("bulk/undo/", views_bulk.undo, name="bulk_undo"),
    path("bulk/keep/", views_bulk.keep, name="bulk_keep"),
    path("views/", views_saved.save, name="save_view"),
    path("views/<int:pk>/delete/", views_saved.delete, name="delete_view"),
    path("sessions/", views_sessions.sessions, name="sessions"),
    path("sessions/one/", views_sessions.session, name="session"),
    path("compare/", views_sessions.compare, name="compare"),
    path("import/", views_import.upload, name="import"),
    path("import/start/", views_import.start, name="import_start"),
    path("import/<uuid:pk>/", views_import.detail, name="import_detail"),
    path("import/<uuid:pk>/status/", views_import.status, name="import_status"),
    path("import/<uuid:pk>/retry/", views_import.retry, name="import_retry"),
    path("data/", views_redaction.page, name="redaction"),
    path("data/retention/", views_redaction.retention, name="retention"),
    path("data/test/", views_redaction.test, name="redaction_test"),
    path("data/switch/", views_redaction.switch, name="redaction_switch"),
    path("data/rules/", views_redaction.add, name="redaction_add"),
    path("data/rules/<int:pk>/", views_redaction.edit, name="redaction_edit"),
    path("data/rules/<int:pk>/delete/", views_redaction.delete, name="redaction_delete"),
    path("<uuid:pk>/", views_detail.detail, name="detail"),
    path("<uuid:pk>/raw/", views_detail.raw, name="raw"),
    path("<uuid:pk>/feedback/", views_detail.feedback, name="feedback"),
    path("<uuid:pk>/messages/<int:first>/", views_detail.part, name="part"),
    path("<uuid:pk>/history/<int:number>/", views_detail.revision, name="revision"),
]
