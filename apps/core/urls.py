from django.urls import path

from apps.core import views
from apps.core.auditing import views as auditing
from apps.core.managed import views as managed_views
from apps.core.projects import views as project_views

app_name = "core"
urlpatterns = [
    path("", views.projects, name="projects"),
    path("p/<slug:slug>/settings/", views.settings, name="settings"),
    path("p/<slug:slug>/settings/project/", project_views.project, name="project"),
    path("p/<slug:slug>/settings/project/archive/", project_views.archive, name="archive_project"),
    path("p/<slug:slug>/settings/project/delete/", project_views.delete, name="delete_project"),
    path("p/<slug:slug>/manage/<slug:kind>/<slug:pk>/", managed_views.manage, name="manage"),
    path(
        "p/<slug:slug>/manage/<slug:kind>/<slug:pk>/rename/",
        managed_views.rename,
        name="object_rename",
    ),
    path(
        "p/<slug:slug>/manage/<slug:kind>/<slug:pk>/archive/",
        managed_views.archive,
        name="object_archive",
    ),
    path(
        "p/<slug:slug>/manage/<slug:kind>/<slug:pk>/delete/",
        managed_views.delete,
        name="object_delete",
    ),
    path("p/<slug:slug>/deletion/", project_views.deletion, name="deletion"),
    path("p/<slug:slug>/deletion/again/", project_views.try_again, name="deletion_again"),
    path("p/<slug:slug>/audit/", auditing.audit, name="audit"),
    path("p/<slug:slug>/audit/export.<slug:format>", auditing.export, name="audit_export"),
    path("p/<slug:slug>/settings/keys/", views.keys, name="keys"),
    path("p/<slug:slug>/settings/keys/<int:pk>/rotate/", views.rotate_key, name="rotate_key"),
    path("p/<slug:slug>/settings/keys/<int:pk>/revoke/", views.revoke_key, name="revoke_key"),
    path("p/<slug:slug>/settings/invitations/", views.invite, name="invite"),
    path(
        "p/<slug:slug>/settings/invitations/<int:pk>/revoke/",
        views.revoke_invitation,
        name="revoke_invitation",
    ),
    path("p/<slug:slug>/settings/members/", views.set_member, name="set_member"),
    path(
        "p/<slug:slug>/settings/members/<int:pk>/unlock/", views.unlock_member, name="unlock_member"
    ),
    path(
        "p/<slug:slug>/settings/members/<int:pk>/remove/", views.remove_member, name="remove_member"
    ),
]
