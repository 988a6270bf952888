app_name = "reviews"
urlpatterns = []
