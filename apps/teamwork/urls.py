from django.urls import path

from apps.teamwork import views

app_name = "teamwork"
urlpatterns = [
    path("<uuid:pk>/", views.comment, name="comment"),
    path("<uuid:pk>/edit/", views.edit, name="edit"),
    path("<uuid:pk>/delete/", views.delete, name="delete"),
    path("on/<slug:kind>/<str:target>/", views.thread, name="thread"),
    path("on/<slug:kind>/<str:target>/add/", views.add, name="add"),
    path("on/<slug:kind>/<str:target>/people/", views.people, name="people"),
    path("assign/<slug:kind>/<str:target>/", views.assign, name="assign"),
]
