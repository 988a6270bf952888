app_name = "promotion"
urlpatterns = []
