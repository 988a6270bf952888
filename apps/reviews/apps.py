from django.apps import AppConfig


class ReviewsConfig(AppConfig):
    name = "apps.reviews"
    label = "reviews"
    pages = {
        "environments.verifier": "reviews:verifier",
        "reviews.rewardreview": "reviews:detail",
        "reviews.proberun": "reviews:probe",
    }
    lists = {"reviews.rewardreview": "reviews:list"}
    declares = (
        "audit_words",
        "erasing",
        "jobs",
        "targets",
    )
