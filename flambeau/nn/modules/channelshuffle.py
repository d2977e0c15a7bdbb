"""ChannelShuffle, under the name programs import it by."""

from flambeau.nn.modules.pixelshuffle import ChannelShuffle

__all__ = ["ChannelShuffle"]
