"""How notebooks show a module: a tree whose branches open and close."""

import html
from typing import Any


def module_html(module: Any, name: str = "", is_open: bool = True) -> str:
    """The module's own line, and below it those of its parts; what has parts can be closed."""
    count = sum(x.numel() for x in module.parameters())
    title = f"{html.escape(f'({name}): ') if name else ''}<b>{html.escape(type(module).__name__)}</b>"
    extra = html.escape(module.extra_repr())
    line = f"{title}({extra}) <small>{count:,} parameters</small>"
    children = module.named_children()
    if not children:
        return f"<div style='margin-left:1em'>{line}</div>"
    below = "".join(module_html(child, key, is_open=False) for key, child in children)
    return f"<details style='margin-left:1em'{' open' if is_open else ''}><summary>{line}</summary>{below}</details>"
