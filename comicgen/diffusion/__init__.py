"""Drawing with torch and diffusers. Nothing outside this package imports either."""
