"""The manifest of an output folder: what is there, and how it came about.

`candidates` follows from the last line of each candidate in the journal. But for bucket and lane,
which change no picture, it holds nothing that differs between a run that was interrupted and one
that was not; `runs` holds the rest.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, get_args

from comicgen.engine import GraphLabel, Note
from comicgen.numerics import Numerics
from comicgen.outputs.entries import Begun, Done, Ended, Entry, Failure
from comicgen.outputs.recall import last_lines

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1


def manifest(entries: Sequence[Entry]) -> dict[str, Any]:
    """The manifest of a journal, as plain JSON that `manifest_schema` describes."""
    lines = sorted(last_lines(entries).values(), key=lambda line: (line.panel, line.number))
    return {
        "format": MANIFEST_FORMAT,
        "candidates": [_candidate(line) for line in lines],
        "runs": _runs(entries),
    }


def encode_manifest(entries: Sequence[Entry]) -> bytes:
    """The content of manifest.json."""
    text = json.dumps(manifest(entries), ensure_ascii=False, indent=1) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _candidate(line: Done | Failure) -> dict[str, Any]:
    done = line if isinstance(line, Done) else None
    return {
        "name": line.candidate,
        "panel": line.panel,
        "number": line.number,
        "status": "done" if done else "failed",
        "reason": None if isinstance(line, Done) else line.reason,
        "file": done and done.file,
        "sha256": done and done.sha256,
        "bytes": done and done.bytes,
        "seed": line.seed,
        "fields": dict(line.fields),
        "fingerprint": line.fingerprint,
        "bucket": done and dict(done.bucket),
        "lane": done and done.lane,
        "environment": line.environment,
        "notes": list(done.notes) if done else [],
    }


def _runs(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Every run in order; what comes before the first was asked for, not drawn."""
    runs: list[list[Entry]] = []
    for entry in entries:
        if isinstance(entry, Begun):
            runs.append([])
        if runs:
            runs[-1].append(entry)
    return [_run(run) for run in runs]


def _run(entries: Sequence[Entry]) -> dict[str, Any]:
    begun = entries[0]
    assert isinstance(begun, Begun)
    ended = next((entry for entry in entries if isinstance(entry, Ended)), None)
    return {
        "environment": dict(begun.environment),
        "begun": begun.time,
        "ended": ended and ended.time,
        "stopped": ended.stopped if ended else "killed",
        "seconds": ended and ended.seconds,
        "memory": ended and ended.memory,
        "pictures": begun.pictures,
        "drawn": {e.candidate: e.seconds for e in entries if isinstance(e, Done)},
        "failed": {e.candidate: e.reason for e in entries if isinstance(e, Failure)},
        "notes": [*begun.warnings, *(e.text for e in entries if isinstance(e, Note))],
        "graphs": _graphs(entries),
        "choices": [dict(choice) for choice in begun.choices],
    }


def _graphs(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The last that was said of each graph of a run, in order of number."""
    last = {entry.number: entry for entry in entries if isinstance(entry, GraphLabel)}
    return [asdict(last[number]) for number in sorted(last)]


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of manifest.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "comicgen manifest",
        **_object(
            {
                "format": {"const": MANIFEST_FORMAT},
                "candidates": {"type": "array", "items": {"oneOf": [_done(), _failed()]}},
                "runs": {"type": "array", "items": _run_schema()},
            }
        ),
    }


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "minimum": 0}
_SECONDS = {"type": "number", "minimum": 0}
_MEASURED = {"type": ["number", "null"], "minimum": 0}
_NOTHING = {"type": "null"}
_SEED = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _done() -> dict[str, Any]:
    return _candidate_schema(
        {
            "status": {"const": "done"},
            "reason": _NOTHING,
            "file": {"type": "string", "description": "path inside the output folder"},
            "sha256": _DIGEST,
            "bytes": _COUNT,
            "bucket": _bucket(),
            "lane": _COUNT,
        }
    )


def _failed() -> dict[str, Any]:
    absent = dict.fromkeys(("file", "sha256", "bytes", "bucket", "lane"), _NOTHING)
    return _candidate_schema({"status": {"const": "failed"}, "reason": _TEXT, **absent})


def _candidate_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {
            "name": _TEXT,
            "panel": _TEXT,
            "number": {"type": "integer", "minimum": 1},
            "seed": _SEED,
            "fields": {"type": "object", "description": "all that can change a pixel"},
            "fingerprint": _DIGEST,
            "environment": _TEXT,
            "notes": _TEXTS,
            **properties,
        }
    )


def _bucket() -> dict[str, Any]:
    return _object(
        {
            "batch": _COUNT,
            "size": _object({"width": _COUNT, "height": _COUNT}),
            "chunks": _COUNT,
            "controls": _COUNT,
            "guided": {"type": "boolean"},
        }
    )


def _run_schema() -> dict[str, Any]:
    time = {"type": ["string", "null"], "format": "date-time"}
    return _object(
        {
            "environment": {
                "type": "object",
                "additionalProperties": {"type": ["string", "integer"]},
            },
            "begun": {"type": "string", "format": "date-time"},
            "ended": time,
            "stopped": {"type": ["string", "null"], "description": "why it ended early"},
            "seconds": {"type": ["number", "null"], "minimum": 0},
            "memory": {"type": ["integer", "null"], "description": "peak RSS in bytes"},
            "pictures": {**_COUNT, "description": "how many it meant to draw"},
            "drawn": {"type": "object", "additionalProperties": _SECONDS},
            "failed": {"type": "object", "additionalProperties": _TEXT},
            "notes": _TEXTS,
            "graphs": {"type": "array", "items": _graph_schema()},
            "choices": {"type": "array", "items": _choice_schema()},
        }
    )


def _graph_schema() -> dict[str, Any]:
    held = "bytes of GPU memory that torch held"
    return _object(
        {
            "number": {"type": "integer", "minimum": 1, "description": "of the captures of a run"},
            "bucket": {**_TEXT, "description": "the bucket that it serves, with its ControlNet"},
            "seconds": {**_SECONDS, "description": "what capture and check took"},
            "before": {**_COUNT, "description": f"{held} before the capture"},
            "after": {**_COUNT, "description": f"{held} after the capture"},
            "replays": {**_COUNT, "description": "how often it was replayed in the run"},
            "attention": {**_TEXT, "description": "the kernels of attention in it"},
        }
    )


def _choice_schema() -> dict[str, Any]:
    way = "seconds of a step of the whole bucket"
    return _object(
        {
            "bucket": {**_TEXT, "description": "the bucket, with its ControlNet"},
            "numerics": {"enum": list(get_args(Numerics)), "description": "what it is drawn with"},
            "graph": {"type": "boolean", "description": "whether a graph is captured for it"},
            "eager": {**_MEASURED, "description": f"{way}, called kernel by kernel"},
            "replayed": {**_MEASURED, "description": f"{way}, replayed from its graph"},
            "plain": {**_MEASURED, "description": f"{way}, with plain numerics, the quicker way"},
            "fused": {**_MEASURED, "description": f"{way}, with fused numerics, the quicker way"},
        }
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
