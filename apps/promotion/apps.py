from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"
    pages = {
        "registry.modelversion": "promotion:model",
        "promotion.gatereport": "promotion:report",
        "promotion.channel": "promotion:models",
    }
    lists = {
        "registry.modelversion": "promotion:models",
        "promotion.channel": "promotion:models",
        "promotion.gatereport": "promotion:models",
    }
    declares = (
        "actions",
        "archiving",
        "audit_words",
        "channels",
        "deployment.actions",
        "freezing",
        "jobs",
        "managing",
        "pulling.links",
        "reports_api",
        "stopping",
        "targets",
        "watched",
    )
    audit_section = "models"
