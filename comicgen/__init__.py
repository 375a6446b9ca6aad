"""comicgen: an offline batch storyboard renderer for AI comics."""

__version__ = "0.1.0"
