from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"
