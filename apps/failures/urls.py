app_name = "failures"
urlpatterns = []
