from apps.core.operations import rest_urls

app_name = "webhooks_api"
urlpatterns = rest_urls("webhooks")
