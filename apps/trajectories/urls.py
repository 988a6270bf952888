app_name = "trajectories"
urlpatterns = []
