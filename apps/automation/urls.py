app_name = "automation"
urlpatterns = []
