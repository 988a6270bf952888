from django.urls import path

from apps.core.operations import page_urls
from apps.registry import price_pages, ray_pages, views

app_name = "registry"
urlpatterns = [
    path("register/", views.register, name="register"),
    path("ray-clusters/", ray_pages.listing, name="ray_clusters"),
    path("prices/", price_pages.listing, name="prices"),
    path("servers/", views.listing, name="servers"),
    path("servers/new/", views.new, name="server_new"),
    path("servers/new/managed/", views.new_managed, name="managed_new"),
    path("servers/<slug:name>/", views.detail, name="server"),
    path("servers/<slug:name>/status/", views.status, name="server_status"),
    path("servers/<slug:name>/edit/", views.edit, name="server_edit"),
    path("servers/<slug:name>/run/", views.run_status, name="server_run"),
    *page_urls("registry"),
]
