"""HTML that is safe by construction: text is escaped unless it is already :class:`Html`."""

from __future__ import annotations

import html

Attribute = str | int | float | bool | None


class Html(str):
    """Markup made here. Anything else that goes into a tag is taken for text and escaped."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: Attribute) -> Html:
    """Return ``<name …>children</name>``.

    ``class_`` becomes ``class`` and ``aria_label`` becomes ``aria-label``; an attribute of
    ``None`` or ``False`` is left out, ``True`` stands without a value.
    """
    return Html(f"<{name}{_attributes(attributes)}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Return the children one after the other, text escaped."""
    return Html("".join(escape(child) for child in children))


def escape(text: str) -> Html:
    """Return ``text`` as HTML; markup made by this module passes unchanged."""
    return text if isinstance(text, Html) else Html(html.escape(text, quote=True))


def _attributes(attributes: dict[str, Attribute]) -> str:
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = name.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{html.escape(str(value), quote=True)}"')
    return "".join(parts)
