"""Operations: what can be done or read, declared once, at the function that does it.

A declaration says what the operation takes and gives, who may use it, where it stands in the API
and on the pages, what it tells of a hold-out, and its sentences of the audit log. The REST route
with its OpenAPI, the form, the page that a form is posted to, and the tables of scopes, roles,
hold-out and audit words follow from it. What none of this fits stays a plain view.
"""

from apps.core.operations.declared import (
    REGISTRY,
    Operation,
    Page,
    Paged,
    Rest,
    Written,
    operation,
)
from apps.core.operations.forms import form_of
from apps.core.operations.inputs import Reference
from apps.core.operations.pages import NOT_DONE, page_urls, submitted
from apps.core.operations.rest import rest_urls
from apps.core.operations.types import Moment, Name, choice_of

__all__ = [
    "NOT_DONE",
    "REGISTRY",
    "Moment",
    "Name",
    "Operation",
    "Page",
    "Paged",
    "Reference",
    "Rest",
    "Written",
    "choice_of",
    "form_of",
    "operation",
    "page_urls",
    "rest_urls",
    "submitted",
]
