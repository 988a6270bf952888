from django.urls import path

from apps.environments import package_views, views

app_name = "environments"
urlpatterns = [
    path("", views.listing, name="list"),
    path("new/", views.new, name="new"),
    path("connect/", views.connect, name="connect"),
    path("connect/test/", views.test_connection, name="test_connection"),
    path("graders/import/", views.import_grader, name="import_grader"),
    path("packages/", package_views.listing, name="packages"),
    path("packages/new.zip", package_views.download, name="package_download"),
    path("packages/upload/", package_views.upload, name="package_upload"),
    path("packages/<slug:name>/", package_views.detail, name="package"),
    path("packages/<slug:name>/use/", package_views.use, name="package_use"),
    path("packages/<slug:name>/check/", package_views.check, name="package_check"),
    path("<int:pk>/", views.detail, name="detail"),
]
