from django.urls import path

from apps.promotion import api

app_name = "promotion_api"
urlpatterns = [path("channels/<slug:name>/", api.channel, name="channel")]
