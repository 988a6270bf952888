"""YAML that people write: one object, no key twice, no aliases, and true, false and numbers as YAML
1.2 reads them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from apps.core.storable import refuse_unstorable
from workers.lib.typed import FormError

LARGEST = 64_000  # characters
DEEPEST = 20  # levels of lists and objects: PyYAML takes quadratic time for deep ones


class YamlError(ValueError):
    """The message is a sentence that begins with the line number, if one is at fault; `field` is
    the path of a value that cannot be stored.
    """

    def __init__(self, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.field = field


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        written: set[str] = set()
        for key, _ in node.value:
            if key.value in written if isinstance(key, yaml.ScalarNode) else False:
                raise yaml.constructor.ConstructorError(
                    None, None, f"“{key.value}” is written twice", key.start_mark
                )
            written.add(str(key.value))
        return super().construct_mapping(node, deep)


# PyYAML is of YAML 1.1, in which off is false and 1e-4 a text.
REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    REPLACED[0], re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
_Loader.add_implicit_resolver(
    REPLACED[1],
    re.compile(
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
    ),
    list("-+0123456789."),
)


def load_yaml(text: str) -> Any:
    """Raises YamlError."""
    if len(text) > LARGEST:
        raise YamlError(f"The text has {len(text):,} characters; at most {LARGEST:,} are read.")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > DEEPEST:
                raise YamlError(
                    f"Line {event.start_mark.line + 1}: more than {DEEPEST} levels deep."
                )
            if isinstance(event, yaml.AliasEvent):
                raise YamlError("Aliases (*name) are not read. Write the value where it is used.")
        value = yaml.load(text, Loader=_Loader)
        refuse_unstorable(value)
        return value
    except FormError as error:
        raise YamlError(str(error), error.path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"Line {mark.line + 1}: " if mark else ""
        raise YamlError(f"{where}{error.problem or 'this is not YAML'}.") from error
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"This is not YAML: {str(error).splitlines()[0][:200]}") from error


def write_yaml(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes what a reader of YAML 1.1 or of 1.2 would take for something else than the text it
    is.
    """


_Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *_Loader.yaml_implicit_resolvers.get(first, []),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}
