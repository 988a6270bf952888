from django.urls import path

from apps.dashboard.operator import views

app_name = "operator"
urlpatterns = [
    path("", views.home, name="home"),
    path("conditions/<slug:name>/mend/", views.mend, name="mend"),
    path("incidents/<int:pk>/mute/", views.mute, name="mute"),
    path("workers/<int:pk>/drain/", views.drain, name="drain"),
]
