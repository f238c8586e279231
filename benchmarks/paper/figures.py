"""What GRACE's text states of its own measurements (section, value); its table bodies are not here.

The paper tests children at four decoding positions, which it calls root, p1, p2 and p3: position i
leads from prefixes of length i to prefixes of length i + 1, so p3 leads to full SIDs. Its static
partitions have a fixed layout; 0.004 of 256 bits is one bit a partition, which only empty
partitions explain, so that figure stands beside ours with these counted.
"""

from __future__ import annotations

from grace.decode import BeamPlan

PLAN = BeamPlan((1, 512, 1024, 1024), 1024)
LIVE_BEAMS_AFTER_FIRST = 492.6  # section 2.4
POSITIONS = ("root", "p1", "p2", "p3")

# (variant, metric) -> (value, section); the units are those of our rows.
FIGURES: dict[tuple[str, str], tuple[float, str]] = {
    ("bitmask+bloom", "bitmask bytes, p3"): (1645e6, "3.5"),
    ("bitmask+bloom", "bitmask distinct bytes, p3"): (228e6, "3.5"),
    ("bitmask+bloom", "Bloom bytes, p3"): (940e6, "3.5"),
    ("bitmask+bloom", "Bloom distinct bytes, p3"): (162e6, "3.5"),
    ("bitmask+bloom", "Bloom fill, root"): (0.979, "6.1"),
    ("bitmask+bloom", "Bloom fill, p2"): (0.069, "6.1"),
    ("static-kway", "Bloom fill with empty partitions, p2"): (0.004, "6.1"),
    ("valid", "pass_rate"): (0.2355, "6.2"),
    ("bitmask+bloom", "pass_rate"): (0.4042, "6.2"),
    ("static-kway", "pass_rate"): (0.4027, "6.2"),
    ("valid", "bitmask_pass_rate"): (0.5781, "6.2"),
    ("bitmask+bloom", "bitmask_pass_rate"): (0.6152, "6.2"),
    ("valid", "bloom_pass_rate"): (0.4074, "6.2"),
    ("bitmask+bloom", "bloom_pass_rate"): (0.6570, "6.2"),
    ("valid", "pass_rate, < 5,000"): (0.2083, "6.2"),
    ("bitmask+bloom", "pass_rate, < 5,000"): (0.5633, "6.2"),
    ("valid", "pass_rate, 5,000-9,999"): (0.2192, "6.2"),
    ("bitmask+bloom", "pass_rate, 5,000-9,999"): (0.4180, "6.2"),
    ("valid", "pass_rate, ≥ 10,000"): (0.2862, "6.2"),
    ("bitmask+bloom", "pass_rate, ≥ 10,000"): (0.3555, "6.2"),
    ("valid", "requests, < 5,000"): (0.5078, "6.2"),
    ("bitmask+bloom", "requests, < 5,000"): (0.3184, "6.2"),
    ("valid", "requests, ≥ 10,000"): (0.1250, "6.2"),
    ("bitmask+bloom", "requests, ≥ 10,000"): (0.2910, "6.2"),
    ("bitmask+bloom", "live beams after token 1"): (LIVE_BEAMS_AFTER_FIRST, "2.4"),
}


def figure_of(variant: str, metric: str) -> dict | None:
    """The paper's figure in the record format's form, or None where its text has none."""
    if (variant, metric) not in FIGURES:
        return None
    value, section = FIGURES[variant, metric]
    return {"value": value, "source": f"GRACE, section {section}"}


def position_name(level: int) -> str:
    """The paper's name of the position that leads to prefixes of a length, from 1 on."""
    return POSITIONS[level - 1] if level <= len(POSITIONS) else f"p{level - 1}"
