from django.urls import path

from apps.failures import views

app_name = "failures"
urlpatterns = [
    path("", views.listing, name="list"),
    path("classify/", views.classify, name="classify"),
    path("triage/", views.triage, name="triage"),
    path("undo/", views.undo, name="undo"),
    path("<int:pk>/", views.case, name="case"),
    path("<int:pk>/decide/", views.decide, name="decide"),
]
