"""The tools of the model, by what they are for. None runs a program, opens a connection or takes a path."""

from attune_lab.agent.claude.toolbox import Toolbox
from attune_lab.agent.claude.tools import editing, judging, launching, lessons, pricing, reading


def toolbox() -> Toolbox:
    """All tools, in the order the model is told of them."""
    return Toolbox((*reading.TOOLS, *editing.TOOLS, *pricing.TOOLS, *judging.TOOLS, *lessons.TOOLS, *launching.TOOLS))


__all__ = ["toolbox"]
