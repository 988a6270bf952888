from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"

    def ready(self) -> None:
        from apps.evals import jobs, runs_api
        from apps.promotion.reports_api import against
        from apps.promotion.stopping import decided

        jobs.DECIDED.append(decided)
        runs_api.EXTRAS.append(against)
