from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"

    def ready(self) -> None:
        from apps.evals import jobs
        from apps.promotion.stopping import decided

        jobs.DECIDED.append(decided)
