from django.urls import path

from apps.environments import views

app_name = "environments"
urlpatterns = [path("", views.listing, name="list"), path("<int:pk>/", views.detail, name="detail")]
