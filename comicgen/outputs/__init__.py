"""The output folder: pictures, journal, manifest and lock."""

from comicgen.outputs.folder import folder_for, read_memory
from comicgen.outputs.keeping import Keeping
from comicgen.outputs.lock import refuse_unusable
from comicgen.outputs.manifest import manifest_schema
from comicgen.outputs.writer import Outputs

__all__ = [
    "Keeping",
    "Outputs",
    "folder_for",
    "manifest_schema",
    "read_memory",
    "refuse_unusable",
]
