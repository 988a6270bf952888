"""allauth's pages that Flywheel has, under allauth's names. There is no sign-up: people are invited
(`join`).
"""

from allauth.account import views as accounts
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as codes
from allauth.mfa.totp import views as totp
from allauth.mfa.webauthn import views as keys
from allauth.socialaccount import views as social
from allauth.usersessions import views as sessions
from django.contrib.auth.views import LogoutView
from django.urls import path, re_path

from apps.core.accounts import views

urlpatterns = [
    path("login/", views.LogIn.as_view(), name="account_login"),
    path("login/second-factor/", views.SecondFactor.as_view(), name="mfa_authenticate"),
    path("login/passkey/", keys.login_webauthn, name="mfa_login_webauthn"),
    path("login/inactive/", accounts.account_inactive, name="account_inactive"),
    path("logout/", LogoutView.as_view(), name="account_logout"),
    path("password/reset/", views.password_reset, name="account_reset_password"),
    path("password/reset/sent/", accounts.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^password/reset/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        accounts.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path(
        "password/reset/done/",
        accounts.password_reset_from_key_done,
        name="account_reset_password_from_key_done",
    ),
    path("join/", views.join, name="join"),
    path("account/", views.account, name="account"),
    path("account/confirm/", views.ConfirmByPassword.as_view(), name="account_reauthenticate"),
    path("account/confirm/code/", views.ConfirmByCode.as_view(), name="mfa_reauthenticate"),
    path("account/confirm/key/", keys.reauthenticate_webauthn, name="mfa_reauthenticate_webauthn"),
    path("account/password/", views.ChangePassword.as_view(), name="account_change_password"),
    path("account/password/set/", accounts.password_set, name="account_set_password"),
    path("account/second-factor/", mfa.index, name="mfa_index"),
    path("account/second-factor/app/", totp.activate_totp, name="mfa_activate_totp"),
    path("account/second-factor/app/remove/", totp.deactivate_totp, name="mfa_deactivate_totp"),
    path("account/second-factor/codes/", codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path(
        "account/second-factor/codes/new/",
        codes.generate_recovery_codes,
        name="mfa_generate_recovery_codes",
    ),
    path(
        "account/second-factor/codes/file/",
        codes.download_recovery_codes,
        name="mfa_download_recovery_codes",
    ),
    path("account/keys/", keys.list_webauthn, name="mfa_list_webauthn"),
    path("account/keys/add/", keys.add_webauthn, name="mfa_add_webauthn"),
    path("account/keys/<int:pk>/", keys.edit_webauthn, name="mfa_edit_webauthn"),
    path("account/keys/<int:pk>/remove/", keys.remove_webauthn, name="mfa_remove_webauthn"),
    path("account/activity/", views.activity, name="account_activity"),
    path("account/sessions/", sessions.list_usersessions, name="usersessions_list"),
    path("account/sign-in/", social.connections, name="socialaccount_connections"),
    path("oidc/signup/", social.signup, name="socialaccount_signup"),
    path("oidc/cancelled/", social.login_cancelled, name="socialaccount_login_cancelled"),
    path("oidc/error/", social.login_error, name="socialaccount_login_error"),
    path("oidc/<str:provider_id>/login/", views.oidc_login, name="openid_connect_login"),
    path(
        "oidc/<str:provider_id>/login/callback/",
        views.oidc_callback,
        name="openid_connect_callback",
    ),
]
