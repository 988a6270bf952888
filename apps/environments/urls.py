app_name = "environments"
urlpatterns = []
