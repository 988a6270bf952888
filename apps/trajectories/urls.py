from django.urls import path

from apps.trajectories.pages import arrivals, bulk, data, detail, imports, listing, saved, sessions

app_name = "trajectories"
urlpatterns = [
    path("", listing.listing, name="list"),
    path("count/", listing.count, name="count"),
    path("trend/", listing.trend, name="trend"),
    path("export/", listing.export, name="export"),
    path("bulk/", bulk.change_many, name="bulk"),
    path("bulk/undo/", bulk.undo, name="bulk_undo"),
    path("bulk/keep/", bulk.keep, name="bulk_keep"),
    path("not-indexed/", arrivals.page, name="arrivals"),
    path("not-indexed/<int:pk>/retry/", arrivals.retry, name="arrival_retry"),
    path("not-indexed/<int:pk>/discard/", arrivals.discard, name="arrival_discard"),
    path("views/", saved.save, name="save_view"),
    path("views/<int:pk>/delete/", saved.delete, name="delete_view"),
    path("sessions/", sessions.sessions, name="sessions"),
    path("sessions/one/", sessions.session, name="session"),
    path("compare/", sessions.compare, name="compare"),
    path("import/", imports.upload, name="import"),
    path("import/start/", imports.start, name="import_start"),
    path("import/<uuid:pk>/", imports.detail, name="import_detail"),
    path("import/<uuid:pk>/status/", imports.status, name="import_status"),
    path("import/<uuid:pk>/retry/", imports.retry, name="import_retry"),
    path("data/", data.page, name="redaction"),
    path("data/retention/", data.retention, name="retention"),
    path("data/test/", data.test, name="redaction_test"),
    path("data/switch/", data.switch, name="redaction_switch"),
    path("data/rules/", data.add, name="redaction_add"),
    path("data/rules/<int:pk>/", data.edit, name="redaction_edit"),
    path("data/rules/<int:pk>/delete/", data.delete, name="redaction_delete"),
    path("<uuid:pk>/", detail.detail, name="detail"),
    path("<uuid:pk>/raw/", detail.raw, name="raw"),
    path("<uuid:pk>/feedback/", detail.feedback, name="feedback"),
    path("<uuid:pk>/messages/<int:first>/", detail.part, name="part"),
    path("<uuid:pk>/history/<int:number>/", detail.revision, name="revision"),
]
