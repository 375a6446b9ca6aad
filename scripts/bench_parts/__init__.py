"""What `scripts/bench.py` measures: comicgen's arm, diffusers' arm, and three contests."""
