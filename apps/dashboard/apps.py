from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "apps.dashboard"
    label = "dashboard"
    pages = {"dashboard.dashboard": "dashboard:dashboard"}
    declares = ("audit_words",)
