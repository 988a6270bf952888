from django.urls import path

from apps.core.operations import page_urls
from apps.prompts.pages import editor, playground

app_name = "prompts"
urlpatterns = [
    path("new/", editor.new, name="new"),
    path("preview/", editor.preview, name="preview"),
    path("try/", editor.try_it, name="try_it"),
    path("playground/", playground.new, name="playground_new"),
    path("playground/<uuid:pk>/", playground.show, name="playground"),
    path("playground/<uuid:pk>/status/", playground.status, name="playground_status"),
    path(
        "playground/<uuid:pk>/prompt/<int:side>/",
        playground.save_prompt,
        name="playground_save_prompt",
    ),
    path("playground/<uuid:pk>/task/", playground.save_task, name="playground_save_task"),
    *page_urls("prompts"),
]
