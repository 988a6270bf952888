from django.urls import path

from apps.environments import views

app_name = "environments"
urlpatterns = [
    path("", views.listing, name="list"),
    path("new/", views.new, name="new"),
    path("connect/", views.connect, name="connect"),
    path("connect/test/", views.test_connection, name="test_connection"),
    path("graders/import/", views.import_grader, name="import_grader"),
    path("<int:pk>/", views.detail, name="detail"),
]
