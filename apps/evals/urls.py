from django.urls import path

from apps.evals import views

app_name = "evals"
urlpatterns = [
    path("", views.listing, name="list"),
    path("create/", views.create, name="create"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/look/", views.look, name="look"),
    path("<uuid:pk>/add/", views.add_trajectories, name="add_trajectories"),
    path("<uuid:pk>/task/", views.add_task, name="add_task"),
    path("<uuid:pk>/split/", views.split, name="split"),
    path("<uuid:pk>/freeze/", views.freeze, name="freeze"),
    path("<uuid:pk>/version/", views.new_version, name="new_version"),
    path("<uuid:pk>/evaluate/", views.new_run, name="new_run"),
    path("tasks/<uuid:pk>/remove/", views.remove_task, name="remove_task"),
    path("runs/<uuid:pk>/", views.run, name="run"),
    path("runs/<uuid:pk>/status/", views.run_status, name="run_status"),
    path("runs/<uuid:pk>/cancel/", views.cancel, name="cancel"),
]
