from django.apps import AppConfig


class ReviewsConfig(AppConfig):
    name = "apps.reviews"
    label = "reviews"
    declares = (
        "audit_words",
        "jobs",
        "targets",
    )
