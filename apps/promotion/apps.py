from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"

    def ready(self) -> None:
        from apps.core.managed.objects import Managed, register
        from apps.environments.reward_models import verifiers_with
        from apps.evals import jobs, runs_api
        from apps.promotion.pulling.links import download_url
        from apps.promotion.reports_api import against
        from apps.promotion.stopping import decided
        from apps.registry import fetching
        from apps.registry.artifacts import free_with
        from apps.registry.models import ModelKind, ModelVersion
        from apps.training.models import TrainingRun

        jobs.DECIDED.append(decided)
        fetching.DOWNLOADS.append(lambda version: download_url(version)["url"])

        def live(version: ModelVersion) -> str:
            names = ", ".join(version.live_in.values_list("name", flat=True))
            if names:
                return f"It is live in {names}. Promote another version or roll back first."
            trial = version.trials.active().first()
            return f"“{trial}” is under way. Stop it first." if trial else ""

        def keeps(version: ModelVersion) -> str:
            run = TrainingRun.objects.filter(project=version.project_id, spec__teacher=version.pk).first()
            return (
                f"It was the teacher of the training run {run.name} and is part of its lineage."
                if run
                else scores(version)
            )

        def scores(version: ModelVersion) -> str:
            names = ", ".join(map(str, verifiers_with(version))) if version.kind == ModelKind.REWARD else ""
            return (
                f"It is used by {names}; without it, existing scores could not be reproduced. Archive it instead."
                if names
                else ""
            )

        def taught(version: ModelVersion) -> str:
            frozen = "Verifiers refer to it by name and are immutable, so it cannot be renamed."
            return frozen if version.kind == ModelKind.REWARD and verifiers_with(version) else agent(version)

        def agent(version: ModelVersion) -> str:
            known = "Agents are identified by name in traces and answers, so it cannot be renamed."
            return known if version.kind == ModelKind.AGENT else ""

        register(Managed(
            kind="model", noun="the model", plural="Models", model=ModelVersion, name="name", versioned=True,
            listing="promotion:models", stays=live, keeps=keeps, named=taught, before=(free_with,),
            warning="Flows and API clients that use the old name must be updated.",
        ))  # fmt: skip
        runs_api.EXTRAS.append(against)
