app_name = "core"
urlpatterns = []
