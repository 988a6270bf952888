"""All settings, driven by the environment. A value that makes no sense stops the start with a
sentence.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from flywheel import embedded, places, private, processes

BASE_DIR = places.CODE
FLYWHEEL_DATA_DIR = embedded.data_dir()


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").lower()
    if value not in ("", "0", "1", "true", "false"):
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
    return value in ("1", "true") if value else default


def env_list(name: str, default: str = "") -> list[str]:
    return [item.strip() for item in os.environ.get(name, default).split(",") if item.strip()]


def env_networks(name: str, default: bool) -> bool | tuple[str, ...]:
    value = os.environ.get(name, "").strip()
    if value.lower() in ("", "0", "1", "true", "false"):
        return env_bool(name, default)
    try:
        return tuple(str(ipaddress.ip_network(item)) for item in env_list(name))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{name} must be 1, 0 or networks such as 10.1.0.0/16, separated by commas: {error}."
        ) from error


def env_keys(name: str, default: str) -> list[str]:
    items = env_list(name, default)
    for item in items:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(@[^@/:\s]+)?", item):
            raise ImproperlyConfigured(
                f"{name} must be VARIABLE or VARIABLE@host, separated by commas, not {item!r}."
            )
    return items


def endpoint_url(url: str) -> str:
    """Of the endpoint beside the pages: the port that its process listens on."""
    return re.sub(r"(:\d+)?$", f":{processes.ENDPOINT_PORT}", url)


def env_ports(name: str) -> list[int]:
    """[first, last]; [] where nothing is given."""
    value = os.environ.get(name, "")
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    if value and not (found and 0 < int(found[1]) <= int(found[2]) < 65_536):
        raise ImproperlyConfigured(f"{name} must be FIRST-LAST, such as 8100-8115, not {value!r}.")
    return [int(found[1]), int(found[2])] if found else []


def env_service(name: str) -> str:
    """The URL of a service. Its password may have left it in pieces, which are not repeated
    here.
    """
    url = os.environ.get(name, "")
    try:
        parts = urlsplit(url)
        is_whole = not parts.fragment and (parts.port or 1) > 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ImproperlyConfigured(
            f"{name} is not a URL. In its password, characters such as / # @ : ? must be"
            " percent-encoded (%2F %23 %40 %3A %3F). The password of PostgreSQL can also stand in"
            " PGPASSWORD instead."
        )
    return url


def artifact_store(address: str) -> dict[str, Any]:
    """Where artifacts are kept (docs/artifacts.md): "" for the data folder, or s3://BUCKET/PREFIX.
    Credentials are boto3's: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, a profile or the machine's
    role."""
    if not address:
        return {"BACKEND": "apps.core.stores.DataFolder"}
    found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w./-]*))?", address)
    if not found or ".." in address:
        raise ImproperlyConfigured(
            f"FLYWHEEL_ARTIFACTS must be s3://BUCKET or s3://BUCKET/PREFIX, not {address!r}."
        )
    from botocore.config import Config

    endpoint = os.environ.get("FLYWHEEL_S3_ENDPOINT") or None
    if endpoint and not re.fullmatch(r"https?://[^/\s@?#]+/?", endpoint):
        raise ImproperlyConfigured(f"FLYWHEEL_S3_ENDPOINT must be https://HOST, not {endpoint!r}.")
    patience = {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"mode": "standard", "total_max_attempts": 3},
    }
    style = {"addressing_style": "path"} if endpoint else {}
    options = {
        "bucket_name": found[1],
        "location": (found[2] or "").strip("/"),
        "endpoint_url": endpoint,
        "region_name": (
            os.environ.get("FLYWHEEL_S3_REGION") or os.environ.get("AWS_REGION") or "us-east-1"
        ),
        "client_config": Config(signature_version="s3v4", s3=style, **patience),
        "file_overwrite": True,
    }
    return {"BACKEND": "apps.core.buckets.Bucket", "OPTIONS": options}


def oidc_apps() -> list[dict[str, Any]]:
    """allauth's settings of the one OpenID Connect provider that the environment names; [] without
    one.
    """
    issuer, client, secret = (
        os.environ.get(f"FLYWHEEL_OIDC_{name}", "")
        for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET")
    )
    if not (issuer or client or secret):
        return []
    if not (issuer and client):
        raise ImproperlyConfigured(
            "FLYWHEEL_OIDC_ISSUER and FLYWHEEL_OIDC_CLIENT_ID are needed together."
        )
    name = os.environ.get("FLYWHEEL_OIDC_NAME") or "Single sign-on"
    return [
        {
            "provider_id": "sso",
            "name": name,
            "client_id": client,
            "secret": secret,
            "settings": {"server_url": issuer},
        }
    ]


def secret_key() -> str:
    """From SECRET_KEY, or made once and kept in the data folder, readable by this user only."""
    if key := os.environ.get("SECRET_KEY"):
        return key
    path = FLYWHEEL_DATA_DIR / "secret_key"
    try:
        private.make_data_folder(FLYWHEEL_DATA_DIR)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(50))
    except FileExistsError:
        pass
    except OSError as error:
        raise SystemExit(
            f"The data folder {FLYWHEEL_DATA_DIR} cannot be written: {error.strerror}. "
            "Make it writable, or name another with FLYWHEEL_DATA_DIR."
        ) from error
    return path.read_text()


SECRET_KEY = secret_key()
# Keys that were SECRET_KEY before: what they signed (sessions, gate reports, webhooks' secrets)
# still holds.
SECRET_KEY_FALLBACKS = env_list("SECRET_KEY_FALLBACKS")
DEBUG = env_bool("DEBUG", False)
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env_list("CSRF_TRUSTED_ORIGINS")
HTTPS = env_bool("FLYWHEEL_HTTPS", False)

INSTALLED_APPS = [
    "apps.core",
    "apps.webhooks",
    "apps.notifications",
    "apps.teamwork",
    "apps.registry",
    "apps.trajectories",
    "apps.failures",
    "apps.environments",
    "apps.evals",
    "apps.prompts",
    "apps.reviews",
    "apps.training",
    "apps.promotion",
    "apps.serving",
    "apps.automation",
    "apps.dashboard",
    "apps.demo",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "django_htmx",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "apps.core.middleware.straight_for_agents",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "apps.core.middleware.content_security_policy",
]
ROOT_URLCONF = "flywheel.urls"
WSGI_APPLICATION = "flywheel.wsgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [places.carried("templates")],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "apps.dashboard.navigation.navigation",
            ],
        },
    }
]


def database(name: str, url: str) -> Any:
    found = dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True)
    if "postgresql" not in found["ENGINE"]:
        raise ImproperlyConfigured(
            f"{name} must name a PostgreSQL database; no other is supported."
        )
    # A server that hangs accepts connections and never answers them; a machine that is cut off does
    # not even refuse: without these its processes would wait for it for hours.
    options = {
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    options |= found.get("OPTIONS", {})
    host = found["HOST"] or options.pop("host", "")  # ?host= of a URL; `dbshell` reads HOST
    return found | {"ENGINE": "flywheel.postgres", "HOST": host, "OPTIONS": options}


DATABASES = {
    "default": database("DATABASE_URL", env_service("DATABASE_URL") or embedded.database_url())
}
# Where DATABASE_URL is a pooler's (docs/machines.md): PostgreSQL itself, for what needs a session
# (flywheel.postgres.direct).
if direct_url := env_service("DATABASE_DIRECT_URL"):
    DATABASES["direct"] = database("DATABASE_DIRECT_URL", direct_url)
# Used codes of second factors and how often resets were asked for: shared by all web processes.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "account_login"

# Signing in (docs/people.md). Failed attempts are counted by apps.core.attempts, so allauth's own
# limits on them are off.
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
ACCOUNT_ADAPTER = "apps.core.accounts.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Flywheel] "
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if HTTPS else "http"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": None, "reauthenticate": None}
ACCOUNT_FORMS = {"change_password": "apps.core.accounts.forms.NewPasswordForm"}
MFA_ADAPTER = "apps.core.accounts.adapters.MFAAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes", "webauthn"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ALLOW_UNVERIFIED_EMAIL = True  # accounts are made by invitation only
MFA_TOTP_ISSUER = "Flywheel"
MFA_TOTP_TOLERANCE = 1
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = (
    not HTTPS
)  # browsers allow passkeys without HTTPS on localhost only
MFA_FORMS = {
    "authenticate": "apps.core.accounts.forms.SecondFactorForm",
    "reauthenticate": "apps.core.accounts.forms.ConfirmForm",
}
SOCIALACCOUNT_ADAPTER = "apps.core.accounts.adapters.SocialAccountAdapter"
SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": oidc_apps()}}

# Without a mail server invitations are links that people send themselves, and nobody can reset a
# password.
EMAIL_HOST = os.environ.get("EMAIL_HOST", "")
FLYWHEEL_MAIL = bool(EMAIL_HOST)
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if FLYWHEEL_MAIL else 'dummy'}.EmailBackend"
EMAIL_PORT = int(os.environ.get("EMAIL_PORT", "587"))
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = (
    os.environ.get("EMAIL_HOST_USER", ""),
    os.environ.get("EMAIL_HOST_PASSWORD", ""),
)
EMAIL_USE_SSL = env_bool("EMAIL_USE_SSL", EMAIL_PORT == 465)
EMAIL_USE_TLS = env_bool("EMAIL_USE_TLS", not EMAIL_USE_SSL)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("DEFAULT_FROM_EMAIL") or EMAIL_HOST_USER or "flywheel@localhost"
ACCOUNT_EMAIL_NOTIFICATIONS = FLYWHEEL_MAIL

# Who is sent what is wrong with the installation (docs/operations.md): addresses, else those of
# superusers, and a webhook.
FLYWHEEL_OPERATOR_MAIL = env_list("FLYWHEEL_OPERATOR_MAIL")
FLYWHEEL_OPERATOR_WEBHOOK = os.environ.get("FLYWHEEL_OPERATOR_WEBHOOK", "")
if FLYWHEEL_OPERATOR_WEBHOOK and not re.match(r"https?://[^/\s]+", FLYWHEEL_OPERATOR_WEBHOOK):
    raise ImproperlyConfigured("FLYWHEEL_OPERATOR_WEBHOOK must be https://HOST/PATH.")
# After how many seconds in which the database answered nobody a web process answers 503 instead of
# waiting (flywheel.postgres.watched).
FLYWHEEL_DATABASE_SILENT_S = float(os.environ.get("FLYWHEEL_DATABASE_SILENT_S") or 0.8)
if not 0.5 <= FLYWHEEL_DATABASE_SILENT_S <= 60:
    raise ImproperlyConfigured("FLYWHEEL_DATABASE_SILENT_S must be from 0.5 to 60 seconds.")
# Who may read /metrics from another machine: Authorization: Bearer TOKEN.
FLYWHEEL_METRICS_TOKEN = os.environ.get("FLYWHEEL_METRICS_TOKEN", "")

# Where a backup is made each day (docs/backup.md): a folder or s3://BUCKET/PREFIX; "" for none. At
# which time (UTC), and how many are kept.
FLYWHEEL_BACKUP_TARGET = os.environ.get("FLYWHEEL_BACKUP_TARGET", "")
if FLYWHEEL_BACKUP_TARGET and not re.match(r"/|s3://", FLYWHEEL_BACKUP_TARGET):
    raise ImproperlyConfigured(
        "FLYWHEEL_BACKUP_TARGET must be the whole path of a folder, or s3://BUCKET/PREFIX, not"
        f" {FLYWHEEL_BACKUP_TARGET!r}."
    )
FLYWHEEL_BACKUP_AT = os.environ.get("FLYWHEEL_BACKUP_AT") or "03:00"
if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", FLYWHEEL_BACKUP_AT):
    raise ImproperlyConfigured(
        f"FLYWHEEL_BACKUP_AT must be a time (UTC) such as 03:00, not {FLYWHEEL_BACKUP_AT!r}."
    )
FLYWHEEL_BACKUP_KEEP = int(os.environ.get("FLYWHEEL_BACKUP_KEEP") or 7)
if FLYWHEEL_BACKUP_KEEP < 1:
    raise ImproperlyConfigured("FLYWHEEL_BACKUP_KEEP must be at least 1.")

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = FLYWHEEL_DATA_DIR / "static"
STATICFILES_DIRS = [places.carried("static")]
# Collected by `prepare`: compressed, and under names with a digest of their content, which browsers
# keep for ever. The files under their plain names would only be packed a second time.
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "artifacts": artifact_store(os.environ.get("FLYWHEEL_ARTIFACTS", "")),
    "staticfiles": {
        "BACKEND": (
            "django.contrib.staticfiles.storage.StaticFilesStorage"
            if DEBUG
            else "whitenoise.storage.CompressedManifestStaticFilesStorage"
        )
    },
}

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
# People are led to HTTPS. Not agents, whose key has been sent in the clear by then, and whose POST
# would become a GET; nor what asks this process itself whether it is well.
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [
    r"^(v1|api/v1|api/public|env|rollout)/",
    r"^(healthz|livez|readyz|metrics)$",
]
# HSTS of other hosts of the domain, and browsers' built-in lists, are its owner's decision, at the
# proxy.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024 * 1024

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["apps.core.api.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["apps.core.api.HasProjectKey"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.core.api.JsonParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.core.api_errors.answer_of",
    "URL_FORMAT_OVERRIDE": None,  # `format` in an address is a parameter of ours
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Flywheel",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": [
        "apps.trajectories.openapi.add_components",
        "apps.core.openapi.group_operations",
        "apps.core.openapi.add_refusals",
        "apps.core.scopes_schema.add_scopes",
    ],
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "filter": True},
    "SERVE_INCLUDE_SCHEMA": False,
    "PATH_CONVERTER_OVERRIDES": {"anything": str},
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SERVE_PERMISSIONS": [],
    "SERVE_AUTHENTICATION": [],
}

CELERY_BROKER_URL = env_service("BROKER_URL") or embedded.broker_url()
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Long jobs are claimed in the database and acknowledged early; a message lost with its worker is
# sent again by the reaper, so the visibility timeout only matters to short tasks.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_timeout": 30,
    "socket_keepalive": True,
    "socket_keepalive_options": {
        number: seconds
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if (number := getattr(socket, name, None)) is not None
    },
}
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "flywheel.beat:Scheduler"
CELERY_BEAT_SCHEDULE = {
    "reap": {"task": "core.reap", "schedule": 10.0},
    "automation": {"task": "automation.tick", "schedule": 10.0},
    "digest": {"task": "trajectories.digest", "schedule": 10.0},
    "settle_traces": {"task": "evals.settle_traces", "schedule": 10.0},
    "back_up": {"task": "core.back_up", "schedule": 300.0},
    "forget_attempts": {"task": "core.forget_attempts", "schedule": 3600.0},
    "look_for_names": {"task": "trajectories.look_for_names", "schedule": 10.0},
    "partitions": {"task": "trajectories.partitions", "schedule": 43_200.0},
    "classify": {"task": "failures.classify_new", "schedule": 10.0},
    "recluster": {"task": "failures.recluster_due", "schedule": 900.0},
    "alerts": {"task": "trajectories.check_alerts", "schedule": 60.0},
    "step_totals": {"task": "trajectories.add_up_steps", "schedule": 30.0},
    "retention": {"task": "trajectories.enforce_retention", "schedule": 3600.0},
    "forget_spans": {"task": "trajectories.forget_spans", "schedule": 3600.0},
    "outcomes": {"task": "failures.train_outcomes", "schedule": 900.0},
    "judge": {"task": "failures.judge_new", "schedule": 180.0},
    "draft_rubrics": {"task": "evals.draft_rubrics_due", "schedule": 180.0},
    "signals": {"task": "failures.ask_signals", "schedule": 180.0},
    "prompts": {"task": "failures.look_at_prompts", "schedule": 180.0},
    "replies": {"task": "failures.look_at_replies", "schedule": 180.0},
    "forget_sessions": {"task": "environments.forget_sessions", "schedule": 600.0},
    "webhooks": {"task": "webhooks.send_due", "schedule": 10.0},
    "forget_deliveries": {"task": "webhooks.forget_old", "schedule": 21_600.0},
    "notification_mail": {"task": "notifications.send_mail", "schedule": 30.0},
    "notification_keys": {"task": "notifications.warn_of_keys", "schedule": 3600.0},
    "forget_notifications": {"task": "notifications.forget_old", "schedule": 43_200.0},
    "forget_comments": {"task": "teamwork.forget_orphans", "schedule": 43_200.0},
    "watch_training": {"task": "training.watch", "schedule": 60.0},
    "judge_outputs": {"task": "training.judge_outputs", "schedule": 60.0},
    "forget_uploads": {"task": "registry.forget_uploads", "schedule": 3600.0},
    "check_servers": {"task": "registry.check_servers", "schedule": 300.0},
    "unload": {"task": "promotion.unload", "schedule": 30.0},
    "check_targets": {"task": "promotion.check_targets", "schedule": 30.0},
    "check_live_servers": {"task": "promotion.check_live_servers", "schedule": 20.0},
    "look_at_trials": {"task": "promotion.look_at_trials", "schedule": 15.0},
}
# What asks the judge's server waits for it, for minutes: rounds in the background come after what a
# person waits for (Redis: 0 is first).
ROUNDS = (
    "evals.draft_rubrics",
    "failures.ask_signals_of",
    "failures.judge_project",
    "failures.look_at_prompts_of",
    "failures.look_at_replies_of",
    "training.judge_outputs_of",
)
CELERY_TASK_ROUTES = {
    "trajectories.digest": {"queue": "ingest"},
    "failures.try_signal": {"queue": "judge", "priority": 0},
    **{name: {"queue": "judge", "priority": 9} for name in ROUNDS},
}
QUEUES = tuple(name for name in processes.WORKERS if name not in processes.OPTIONAL)

FLYWHEEL_DTYPE = os.environ.get("FLYWHEEL_DTYPE", "float32")
if FLYWHEEL_DTYPE not in ("float32", "bfloat16", "float16"):
    raise ImproperlyConfigured(
        f"FLYWHEEL_DTYPE must be float32, bfloat16 or float16, not {FLYWHEEL_DTYPE!r}."
    )

# How many processes may share a step of a training run: the GPUs of a training worker, or on
# processors as many as they can feed.
FLYWHEEL_TRAINING_PROCESSES = int(os.environ.get("FLYWHEEL_TRAINING_PROCESSES") or 1)
# Where agents find the model and the tools of a rollout in training: what the training program
# listens on (port 0: any that is free), and what agents elsewhere call instead.
FLYWHEEL_ROLLOUTS_HOST = os.environ.get("FLYWHEEL_ROLLOUTS_HOST") or "127.0.0.1"
FLYWHEEL_ROLLOUTS_PORT = int(os.environ.get("FLYWHEEL_ROLLOUTS_PORT") or 0)
FLYWHEEL_ROLLOUTS_URL = os.environ.get("FLYWHEEL_ROLLOUTS_URL", "")
# How long the imports of jobs that load a model are kept after the last one; 0: each job imports.
FLYWHEEL_WARM_S = float(os.environ.get("FLYWHEEL_WARM_S") or 120)

# Whether training workers can load a base in 4 bits (QLoRA): they have requirements/qlora.txt.
FLYWHEEL_LOAD_IN_4BIT = (
    os.environ.get("FLYWHEEL_LOAD_IN_4BIT", str(int(find_spec("bitsandbytes") is not None))) == "1"
)

# Folders on this machine in which base models and adapters may be named on a page or by API; the
# command takes any.
FLYWHEEL_MODEL_FOLDERS = [
    folder for folder in os.environ.get("FLYWHEEL_MODEL_FOLDERS", "").split(os.pathsep) if folder
] or [str(FLYWHEEL_DATA_DIR / "models")]

# Signs gate reports (docs/gate.md). Empty: SECRET_KEY does.
FLYWHEEL_SIGNING_KEY = os.environ.get("FLYWHEEL_SIGNING_KEY", "")
# How many of a training run's newest checkpoints are kept, besides the best one.
FLYWHEEL_KEPT_CHECKPOINTS = int(os.environ.get("FLYWHEEL_KEPT_CHECKPOINTS", "3"))
if FLYWHEEL_KEPT_CHECKPOINTS < 1:
    raise ImproperlyConfigured(
        "FLYWHEEL_KEPT_CHECKPOINTS must be at least 1: a run resumes from its newest checkpoint."
    )

# What an hour of a machine that trains costs, in USD, for the estimate of a run; 0: not said.
FLYWHEEL_MACHINE_USD = float(os.environ.get("FLYWHEEL_MACHINE_USD", "0") or 0)

# Where people open Flywheel, for links in emails and chats: https://flywheel.example.com. `up`
# knows its own address.
_named = next(
    (host for host in ALLOWED_HOSTS if "*" not in host and not host.startswith(".")), "localhost"
)
FLYWHEEL_URL = (
    os.environ.get("FLYWHEEL_URL") or f"{'https' if HTTPS else 'http'}://{_named}"
).rstrip("/")
if not re.fullmatch(r"https?://[^/\s@?#<>|\"]+", FLYWHEEL_URL):
    raise ImproperlyConfigured(
        f"FLYWHEEL_URL must be https://HOST, without a path, not {FLYWHEEL_URL!r}."
    )

# How many proxies stand before the web process: their X-Forwarded-For then says where a request
# comes from.
FLYWHEEL_PROXIES = int(os.environ.get("FLYWHEEL_PROXIES") or HTTPS)

# The folder with packages of environments (docs/own-environment.md). What an operator puts there
# runs unconfined. Folders of spaCy models for Presidio (docs/pii.md).
FLYWHEEL_PRESIDIO_MODELS = Path(
    os.environ.get("FLYWHEEL_PRESIDIO_MODELS") or FLYWHEEL_DATA_DIR / "presidio"
)
FLYWHEEL_ENVIRONMENTS_DIR = Path(
    os.environ.get("FLYWHEEL_ENVIRONMENTS_DIR") or FLYWHEEL_DATA_DIR / "environments"
)

# A session of an environment that nobody has called for so long (seconds) is forgotten.
FLYWHEEL_ENVIRONMENT_SESSION_S = int(os.environ.get("FLYWHEEL_ENVIRONMENT_SESSION_S", "3600"))

# Answers to held-out tasks that a project's keys may have scored by API in 24 hours: who scores at
# will climbs the hold-out.
FLYWHEEL_HOLDOUT_SCORES_A_DAY = int(os.environ.get("FLYWHEEL_HOLDOUT_SCORES_A_DAY", "1000"))

# An agent that is evaluated elsewhere (CI) and sends no answer for so long (seconds) has its
# evaluation end as incomplete.
FLYWHEEL_ANSWERS_WAIT_S = int(os.environ.get("FLYWHEEL_ANSWERS_WAIT_S", "3600"))
# Where its last answer comes as a trace, its evaluation waits so long (seconds) for spans that come
# late.
FLYWHEEL_TRACES_SETTLE_S = int(os.environ.get("FLYWHEEL_TRACES_SETTLE_S", "30"))

# Where inside this network addresses may be that people type in (a judge's server): anywhere (1),
# usual on one machine, nowhere (0), or in these networks.
FLYWHEEL_ALLOW_PRIVATE_URLS = env_networks(
    "FLYWHEEL_ALLOW_PRIVATE_URLS", not os.environ.get("DATABASE_URL")
)
# Which environment variables may be sent to another server as a key (a judge's, a remote
# environment's), and to which host: VARIABLE@host. VARIABLE alone may go to any server that an
# operator names.
FLYWHEEL_OUTGOING_KEYS = env_keys(
    "FLYWHEEL_OUTGOING_KEYS",
    "FLYWHEEL_JUDGE_API_KEY,OPENAI_API_KEY@api.openai.com,ANTHROPIC_API_KEY@api.anthropic.com,"
    "MISTRAL_API_KEY@api.mistral.ai,OPENROUTER_API_KEY@openrouter.ai,TOGETHER_API_KEY@api.together.xyz",
)

# The Python with NeMo Data Designer (`make designer`); where it is absent, variants are made by
# templates only.
FLYWHEEL_DESIGNER_PYTHON = os.environ.get(
    "FLYWHEEL_DESIGNER_PYTHON", str(BASE_DIR / ".venv-designer" / "bin" / "python")
)

# The Python with GEPA (`make gepa`), which searches prompts.
FLYWHEEL_GEPA_PYTHON = os.environ.get(
    "FLYWHEEL_GEPA_PYTHON", str(BASE_DIR / ".venv-gepa" / "bin" / "python")
)

# The vLLM that serves models (`make vllm`); where it is absent, managed servers run with
# transformers.
FLYWHEEL_VLLM = os.environ.get("FLYWHEEL_VLLM", str(BASE_DIR / ".venv-vllm" / "bin" / "vllm"))
# Where the servers that a worker starts listen: an address of its machine that the other workers
# reach, never one that strangers reach, and the first and last of the ports that may be taken
# (empty: any).
FLYWHEEL_SERVE_HOST = os.environ.get("FLYWHEEL_SERVE_HOST") or "127.0.0.1"
FLYWHEEL_SERVE_PORTS = env_ports("FLYWHEEL_SERVE_PORTS")
# What a machine that serves with a data folder of its own keeps of adapters that it fetched.
FLYWHEEL_FETCHED_GIB = float(os.environ.get("FLYWHEEL_FETCHED_GIB") or 20)

# From when on a session of a canary or shadow is compared, after it began (docs/canary.md).
FLYWHEEL_TRIAL_SETTLE_MINUTES = float(os.environ.get("FLYWHEEL_TRIAL_SETTLE_MINUTES") or 2)
# The endpoint (docs/endpoint.md): where people reach it, where it keeps answers until the database
# has them, and its bounds: bytes of a request and an answer, seconds until a connection, a stream's
# first byte, a whole answer, and between two pieces of a stream; for a trial's candidate, for a
# shadow, and how many shadows at a time. How many endpoints run: each allows its part of a key's
# limits.
FLYWHEEL_ENDPOINT_URL = (
    os.environ.get("FLYWHEEL_ENDPOINT_URL") or endpoint_url(FLYWHEEL_URL)
).rstrip("/")
FLYWHEEL_ENDPOINT_SPOOL = os.environ.get("FLYWHEEL_ENDPOINT_SPOOL") or str(
    FLYWHEEL_DATA_DIR / "endpoint"
)
FLYWHEEL_ENDPOINT = {
    "body": int(os.environ.get("FLYWHEEL_ENDPOINT_BODY_MB") or 32) * 2**20,
    "answer": int(os.environ.get("FLYWHEEL_ENDPOINT_ANSWER_MB") or 64) * 2**20,
    "connect_s": float(os.environ.get("FLYWHEEL_ENDPOINT_CONNECT_S") or 5),
    "first_s": float(os.environ.get("FLYWHEEL_ENDPOINT_FIRST_BYTE_S") or 120),
    "whole_s": float(os.environ.get("FLYWHEEL_ENDPOINT_WHOLE_S") or 600),
    "idle_s": float(os.environ.get("FLYWHEEL_ENDPOINT_IDLE_S") or 60),
    "canary_s": float(os.environ.get("FLYWHEEL_ENDPOINT_CANARY_S") or 60),
    "shadow_s": float(os.environ.get("FLYWHEEL_ENDPOINT_SHADOW_S") or 120),
    "shadows": int(os.environ.get("FLYWHEEL_ENDPOINT_SHADOWS") or 64),
}
FLYWHEEL_ENDPOINT_PROCESSES = max(1, int(os.environ.get("FLYWHEEL_ENDPOINT_PROCESSES") or 1))

if os.environ.get("LOG_FORMAT", "") not in ("", "text", "json"):
    raise ImproperlyConfigured("LOG_FORMAT must be text or json.")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "flywheel.logs.Line"}},
    "filters": {
        "not_health": {"()": "flywheel.logs.NotHealth"},
        "one_line": {"()": "flywheel.outages.OneLine"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "filters": ["not_health", "one_line"],
        }
    },
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO").upper()},
    "loggers": {"httpx2": {"level": "WARNING"}, "openai": {"level": "WARNING"}},
}
