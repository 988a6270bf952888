from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "apps.promotion"
    label = "promotion"

    def ready(self) -> None:
        from apps.core.managed.objects import Managed, register
        from apps.core.models import Role
        from apps.environments.reward_models import verifiers_with
        from apps.evals import jobs, runs_api
        from apps.promotion import archiving
        from apps.promotion.models import Channel
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
            names = ", ".join(version.live_in.current().values_list("name", flat=True))
            if names:
                return f"It is live in {names}. Promote another version or roll back first."
            active = version.trials.active().first() or version.deployments.active().first()
            return f"“{active}” is under way. Stop it first." if active else ""

        def keeps(version: ModelVersion) -> str:
            run = TrainingRun.objects.filter(
                project=version.project_id, spec__teacher=version.pk
            ).first()
            return (
                f"It was the teacher of the training run {run.name} and is part of its lineage."
                if run
                else scores(version)
            )

        def scores(version: ModelVersion) -> str:
            names = (
                ", ".join(map(str, verifiers_with(version)))
                if version.kind == ModelKind.REWARD
                else ""
            )
            return (
                f"It is used by {names}; without it, existing scores could not be reproduced."
                if names
                else ""
            )

        def taught(version: ModelVersion) -> str:
            frozen = "Verifiers refer to it by name and are immutable, so it cannot be renamed."
            return (
                frozen
                if version.kind == ModelKind.REWARD and verifiers_with(version)
                else agent(version)
            )

        def agent(version: ModelVersion) -> str:
            known = "Agents are identified by name in traces and answers, so it cannot be renamed."
            return known if version.kind == ModelKind.AGENT else ""

        register(
            Managed(
                kind="model",
                noun="the model",
                plural="Models",
                model=ModelVersion,
                name="name",
                versioned=True,
                listing="promotion:models",
                stays=live,
                keeps=keeps,
                named=taught,
                before=(free_with,),
                warning="Flows and API clients that use the old name must be updated.",
            )
        )
        register(
            Managed(
                kind="channel",
                noun="the channel",
                plural="Models",
                model=Channel,
                name="name",
                versioned=False,
                listing="promotion:models",
                stays=archiving.why_not,
                archivers=Role.OWNER,
                on_archive=archiving.on_archive,
                allow_key=archiving.allow_key,
                archive_confirm="The endpoint stops answering for it.",
                archived_text=archiving.ARCHIVED_TEXT,
                unarchived_text=archiving.UNARCHIVED_TEXT,
                named=lambda _: (
                    "Agents, clients and flows ask for a channel by its name, so it cannot be"
                    " renamed."
                ),
                shields=("promotion.promotion", "promotion.deployment", "promotion.trial"),
            )
        )
        runs_api.EXTRAS.append(against)
