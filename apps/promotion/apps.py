from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"
    declares = (
        "archiving",
        "audit_words",
        "jobs",
        "managing",
        "pulling.links",
        "reports_api",
        "stopping",
        "targets",
    )
